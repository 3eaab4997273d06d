"""Define the plan, and carry it out on the graph: new nodes, weights, metadata, regions, guards.

`plan` holds the value; only `apply` changes a model. It imports `rules` and the folders below, and
asks `runtime` of one kernel; `decide` and everything above import it.
"""
