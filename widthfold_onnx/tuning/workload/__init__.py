"""Cut layers out of a model as models of their own, to be measured in every form.

`layers` collects the layers, `candidates` lists their forms, `cut` makes the models, `workloads`
names them. It imports `decide` and `tuning.cost`; `tuning` imports it.
"""
