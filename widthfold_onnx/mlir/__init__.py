"""Fold linalg operations of an MLIR module: the paper's pass in a compiler's own language.

    library: opens IREE's bindings of MLIR, which only the extra `mlir` installs
    layers: reads each named linalg operation as a layer, all layers as one ONNX model
    emission: puts the folded operation and its moves in the place of a layer
    files: folds an MLIR or ONNX file into an MLIR file

The legal forms, the choice among them, moves and weights come from `algebra`, `rules` and
`rewrite.plan`, as for an ONNX model. Only the command line imports it.
"""
