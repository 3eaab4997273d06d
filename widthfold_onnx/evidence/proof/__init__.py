"""Prove that two ONNX graphs are the same function, by evaluating both over finite fields.

`program` reads a model. `evaluation` computes its values (`values`, `geometry`) in the `field`, by
the definitions in `operators`. `proving` compares two models at `sizes`, and `doubt` explains a
difference by `float64`. The package knows no rule, no fold and no operator description, so that
these cannot deceive it. With the rewriting it shares `model`: reading, and inference of shapes.
"""
