"""Uses ONNX Runtime: sessions, inputs, child processes, the clock."""
