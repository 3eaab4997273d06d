"""List the forms of a site, and check which of them are legal.

`form` defines them, `enumeration` lists them, `windows` and `rows` plan their moves, `legality`
checks them in one place. It imports `rules.match`; `rules` and everything above import it.
"""
