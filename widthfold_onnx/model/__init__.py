"""Read, check, describe, link, change and write models; nothing else handles untrusted files.

    proto: the model as protobuf messages
    loader: a file becomes a checked ModelProto; `preflight` counts its bytes first
    shapes: the extents of every value
    graph: the linked graph, by onnx_ir
    writer: a ModelProto becomes a file, in one step (`atomic`)

It imports `errors`, `refusal`, `text` and `options`; `operators` and everything above import it.
"""
