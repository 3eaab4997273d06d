"""Everything that touches ONNX Runtime: sessions, inputs, child processes, the clock."""
