"""Search the forms of a whole model: measure, assign, try, choose.

It imports all other folders of `plan`; `planning` and the command `tune` import it.
"""
