"""Decide the plan of a model at a fixed factor, and report what a plan does to every layer.

`decisions` holds the outcome of each layer; `fixed` decides at a factor. `survey` shows all forms,
`hints` finds options that would fold a layer, `report` describes a plan. `api`, `evidence`,
`mlir`, `pipeline` and `tuning` import it.
"""
