"""Compute folds of weights and tensors: numpy in, numpy out, no ONNX."""
