"""Open sessions of ONNX Runtime: providers, options, libraries, bindings, failures.

Nothing else imports onnxruntime. It imports `options`, `errors`, `text` and `model.proto`;
`runtime` and everything above import it.
"""
