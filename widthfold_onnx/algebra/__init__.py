"""Compute folds of weights and tensors: numpy in, numpy out, no ONNX.

It imports `refusal` and `arrays` alone; `operators` and everything above import it.
"""
