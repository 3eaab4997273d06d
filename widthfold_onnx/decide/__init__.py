"""Decide the form of every layer, at a fixed factor or by a plan, and report what becomes of it.

`decisions` reads layers and chooses their forms; `fixed` decides at a factor, `match` finds the
parts of a plan in a model. `inspection` shows the forms of each axis, `hints` finds options that
would fold a layer, `outcomes` says what was decided, for the report.
"""
