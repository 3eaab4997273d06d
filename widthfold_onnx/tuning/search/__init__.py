"""Search the forms of a whole model: measure, assign, try, decide; the result is a plan.

It imports all other parts of `tuning`; `pipeline` and `tuning` import it.
"""
