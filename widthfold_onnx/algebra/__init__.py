"""Compute folds of weights and tensors: numpy in, numpy out, no ONNX.

It imports `refusal` alone; `operators` and everything above import it.
"""
