"""Define the plan, and carry it out on the graph: new nodes, weights, metadata, regions, guards.

`plan` holds the value. `reading` reads a model under it: `exchange` puts companions in place,
`padding` pads channels. `fit` matches the layers, `rewriting` chooses `regions` and `guards`,
then makes `new_nodes`: a `folded_node` of each layer, with its `record`. `scratch` writes models
that are only run. `decide` and everything above import it.
"""
