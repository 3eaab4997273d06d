"""Cut layers out of a model as models of their own, to be measured in every form.

It imports `decide` and `tuning.cost`; `tuning` imports it.
"""
