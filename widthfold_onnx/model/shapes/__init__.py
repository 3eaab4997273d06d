"""Find the extents of every value: numbers, or None where they depend on data or open inputs.

    table        the extents by graph and name
    evaluation   visits nodes in order, with the graphs and functions in them
    loops        outputs of Loop and Scan
    inference    types of the outputs of one node, by onnx
    extents      extents of outputs where inference errs or knows less
    arithmetic   numbers of the outputs of one node
    fact         type and numbers of one value

It imports `model.proto`; `model.read` and `model.graph` import it.
"""
