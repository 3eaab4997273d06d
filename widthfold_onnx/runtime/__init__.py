"""Use ONNX Runtime: sessions, inputs, child processes, the clock.

It imports `options`, `errors` and `text`, and of `model` only `proto`; `plan` and `evidence` import
it, and nothing else of the package imports onnxruntime.
"""
