"""Define the plan, and carry it out on the graph: new nodes, weights, metadata, regions, guards.

`plan` is the value, `apply` the one way to change a model. It imports `rules` and the folders
below, and asks `runtime` of one kernel; `decide`, `tuning` and `evidence` import it.
"""
