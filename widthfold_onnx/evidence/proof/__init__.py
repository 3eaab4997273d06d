"""Prove that two ONNX graphs are the same function, by evaluating both over finite fields.

`program` reads a model, `values` and `geometry` describe what `evaluate` computes in the `field` by
the definitions in `operators`. `compare` compares two models, at `sizes`; `doubt` decides by
`float64` what a difference shows. It imports `model` and the files below, so it shares no code with
the rewriting; `api` and `evidence` import it.
"""
