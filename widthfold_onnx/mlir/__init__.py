"""Fold linalg operations of an MLIR module: the paper's pass in a compiler's own language.

    library    the door to IREE's bindings of MLIR; only the extra `mlir` installs them
    layers     a named linalg operation is read as a layer, all of them as one ONNX model
    emission   the folded operation and its moves take the place of the layer
    files      an MLIR or ONNX file is folded into an MLIR file

Which forms are legal, which one is taken, its moves and its weight come from `algebra`, `rules` and
`plan`, as for an ONNX model. Only the command line imports it.
"""
