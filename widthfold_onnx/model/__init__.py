"""Read, check, describe, link, change and write models; nothing else handles untrusted files.

    proto: the model as protobuf messages
    read: a file becomes a checked ModelProto
    shapes: the extents of every value
    graph: the linked graph, by onnx_ir
    write: a ModelProto becomes a file

It imports `errors`, `refusal`, `text` and `options`; `operators` and everything above import it.
"""
