"""Open sessions of ONNX Runtime: providers, options, libraries, bindings, failures.

It is the one door to onnxruntime, and imports nothing of the package but `options`, `errors`,
`text` and `model.proto`; the rest of `runtime` and the packages above import it.
"""
