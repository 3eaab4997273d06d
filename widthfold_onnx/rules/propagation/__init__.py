"""Run ops between folded nodes on packed tensors: which ops can, and how.

`table` has the rules by operator, `axes` the ops along axes, `op` the types that a rule reads.
It imports `algebra`, `model` and `operators`; `rewrite`, `rules` and `tuning` import it.
"""
