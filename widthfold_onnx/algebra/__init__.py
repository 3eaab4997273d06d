"""Compute folds of weights and tensors: numpy in, numpy out, no ONNX.

`operators` and everything above import it.
"""
