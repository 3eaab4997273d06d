"""Decide the form of every layer, at a fixed factor or by a plan, and report what becomes of it.

`decisions` drafts plans and chooses forms; `fixed` decides at a factor, and returns a
`decided_plan`. `match` finds the parts of a plan in a model. `inspection` shows the forms of each
axis, `hints` finds options that would fold a layer, `outcomes` reports what a plan does.
"""
