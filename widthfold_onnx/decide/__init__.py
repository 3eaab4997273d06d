"""Decide the plan of a model at a fixed factor, and report what a plan does to every layer.

It imports `rules`, `rewrite` and `runtime`.
`api`, `evidence`, `mlir`, `pipeline` and `tuning` import it.
"""
