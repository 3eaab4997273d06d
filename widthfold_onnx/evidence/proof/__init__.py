"""Prove that two ONNX graphs are the same function, by evaluating both over finite fields.

`program` reads a model. `evaluation` computes its values (`values`, `geometry`) in the `field`, by
the definitions in `operators`. `proving` compares two models at `sizes`, and `doubt` explains a
difference by `float64`. The package imports `model` and the files below: it knows no rule, no fold
and no operator description, and shares with the rewriting how models are read and shapes inferred.
"""
