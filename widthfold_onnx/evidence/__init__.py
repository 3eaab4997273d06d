"""Gather evidence that a rewritten model computes what the original computes, and how fast.

    proof        both graphs evaluated in a finite field: equal or not, without a tolerance
    parity       outputs on the runtime, beside a reference in float64
    eight_bits   kernels of 8 bits that compute exactly, inputs that fill their range
    timing       paired runs, an interval, a verdict

`proof` imports nothing of `fold`, `operators`, `rules`, `rewrite` and `plan`. `delivery` and
`pipeline` import the package.
"""
