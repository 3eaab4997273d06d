"""Gather evidence that a rewritten model computes what the original computes, and how fast.

    proof        both graphs evaluated in a finite field: equal or not, without a tolerance
    inputs       inputs that show something: sizes, limits, ranges of quantizers
    parity       outputs on the runtime: no further off than rounding moves the original
    eight_bits   kernels of 8 bits that compute exactly
    timing       paired runs, an interval, a verdict

`proof` imports nothing of `algebra`, `operators`, `rules`, `rewrite` and `plan`. `delivery` and
`pipeline` import the package.
"""
