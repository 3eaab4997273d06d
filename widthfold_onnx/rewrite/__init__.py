"""Carry out what is done to a model: new nodes, weights, metadata, regions, guards.

`draft` holds what is done, `plan` is its file format. `reading` reads a model under a draft:
`exchange` puts companions in place, `padding` pads channels. `rewriting` gives layers their forms:
it chooses `regions` and `guards`, then makes `new_nodes`: a `folded_node` of each layer, with its
`record`. `scratch` writes models that are only run.
"""
