"""Read, check, describe, link, change and write models; nothing else handles untrusted files.

`loader` reads a file as a checked ModelProto, `writer` writes one. `proto` holds the model as
messages, `shapes` the extents of its values. `document.Document` links its nodes, reads its
`constants`, and alone hands onnx_ir to the package. `operators` and everything above import it.
"""
