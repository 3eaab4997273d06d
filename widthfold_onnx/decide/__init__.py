"""Decide the plan of a model at a fixed factor, and report what a plan does to every layer.

`decisions` drafts plans and chooses forms; `fixed` decides at a factor, and returns a
`decided_plan`. `inspection` shows the forms of each axis, `hints` finds options that would fold a
layer, `outcomes` reports what a plan does. `api`, `cli`, `evidence`, `mlir`, `pipeline` and
`tuning` import it.
"""
