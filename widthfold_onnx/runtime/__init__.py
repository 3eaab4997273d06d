"""Use ONNX Runtime: sessions, inputs, child processes, paired timing, measurements, the machine.

It imports `options`, `results`, `errors` and `text`, and of `model` only `proto`; nothing else of
the package imports onnxruntime. `rewrite` and everything above import it.
"""
