"""Run ops between folded nodes on packed tensors: which ops can, and how.

`table` lists the rules by operator and enforces what all of them share. It imports `fold` and
`model`; `rewrite` imports it.
"""
