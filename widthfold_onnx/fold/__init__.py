"""The mathematics of folding: numpy in, numpy out, no ONNX."""
