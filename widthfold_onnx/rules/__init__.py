"""Find the forms that may replace a node, or the reason why there is none.

`layer_reading` reads a node, also a `quantization`, as a `layers.Layer`: a weight [O, C/group,
*kernel] that slides over axes of positions. `enumeration` lists its forms (`form`), `spatial_fold`
and `row_fold` plan their moves, and `legality` checks every form. `selection` picks a form, or
lists the forms that a search tries. `op` reads the ops between layers, for `companions`,
`propagation` and `padding`. Rules never change the graph.
"""
