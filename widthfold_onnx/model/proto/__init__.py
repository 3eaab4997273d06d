"""Read a model as protobuf messages: nodes, bodies, functions, tensors, external data.

Here is what needs no linked graph: walks over all nodes, scopes of names, the evaluation of a node
on constants.
"""
