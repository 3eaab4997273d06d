"""Find the forms that may replace a node, or the reason why there is none.

`layer_reading` reads a node as a `layers.Layer`: a weight [O, C/group, *kernel] that slides over
axes of positions; `quantization` reads the integers of a quantized one. `enumeration` lists the
forms of a layer (`form`), `spatial_fold` and `row_fold` plan their moves, and `legality` checks
them. `selection` picks one form, or lists those that a search tries. `op` reads the ops between
layers, for `companions`, `propagation` and `padding`. Rules never change the graph.
"""
