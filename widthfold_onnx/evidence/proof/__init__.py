"""Proves that two ONNX graphs are the same function, by evaluating both over finite fields.

`field` is the arithmetic, `values` are the tensors, `operators/` defines what each operator
computes, `evaluate` runs a graph, and `compare` compares two of them. Nothing here knows of folds:
the package imports `model/` only, so that the proof shares no code with the rewriting.
"""
