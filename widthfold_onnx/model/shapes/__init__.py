"""Find the extents of every value: numbers, or nothing where they depend on data or open inputs.

    table        the extents by graph and name
    evaluation   all nodes in order, with the graphs and functions in them
    loops        what Loop and Scan return
    inference    the type of what one node returns, by onnx
    extents      what inference errs in, or lacks
    arithmetic   the numbers of what one node returns
    fact         what is known of a value

It imports `model.proto`; `model.read` and `model.graph` import it.
"""
