"""Open sessions of ONNX Runtime: providers, options, libraries, bindings, failures.

Nothing else imports onnxruntime. The folder imports nothing of the package but `options`, `errors`,
`text` and `model.proto`; the rest of `runtime` and the packages above import it.
"""
