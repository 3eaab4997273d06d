"""Prove that two ONNX graphs are the same function, by evaluating both over finite fields.

`program` reads a model. `evaluate` computes its values (`values`, `geometry`) in the `field`, by
the definitions in `operators`. `compare` compares two models at `sizes`, and `doubt` explains a
difference by `float64`. The package imports `model` and the files below, so it shares no code with
the rewriting; `api` and `evidence` import it.
"""
