"""Decide the plan of a model at a fixed factor, and report what a plan does to every layer.

Nothing is changed here: a plan is a value that `rewrite.apply` carries out. It imports `rules`,
`rewrite` and `runtime`; `tuning`, `mlir`, `pipeline` and `api` import it.
"""
