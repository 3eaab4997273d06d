"""Look at a model as protobuf messages: nodes, bodies, functions, tensors, external data.

It holds what needs no linked graph: walks over all nodes, scopes of names, the evaluation of one
node with constant inputs.
"""
