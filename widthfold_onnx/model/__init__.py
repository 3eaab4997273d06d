"""Read, check, describe, link, change and write models; nothing else handles untrusted files.

`loader` reads a file as a checked ModelProto, `writer` writes one. `proto` holds the model as
messages, `shapes` the extents of its values. `document.Document` links its nodes and reads its
`constants`. `library` alone imports onnx_ir.
"""
