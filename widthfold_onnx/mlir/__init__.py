"""Fold linalg operations of an MLIR module: the paper's pass in a compiler's own language.

`library` opens IREE's bindings, `layers` reads operations as layers, `emission` puts folded
operations in their place, `files` goes from file to file. Forms, moves and weights come from
`algebra`, `rules` and `rewrite`, as for an ONNX model; `cli` imports it.
"""
