"""Find the extents of every value: numbers, symbols, or nothing.

It repairs onnx's shape inference where that fails or knows less than the graph says. It imports
`model.proto`; `model.read` and `model.graph` import it.
"""
