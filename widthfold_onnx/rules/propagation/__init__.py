"""Run ops between folded nodes on packed tensors: which ops can, and how.

    table      the rules by operator, and what all of them share
    channels   the rules of Concat and Split
    axes       the rules of pools, pads, reductions and Resize
    op         what a rule is given and returns

It imports `fold`, `model` and `operators`; `rewrite` and `plan` import it.
"""
