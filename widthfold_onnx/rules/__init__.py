"""Find the forms that may replace a node, or the reason why there is none.

`match` reads a node into a site: a weight [O, C/group, *kernel] that slides over axes of positions.
`forms` lists its forms and checks them, and `selection` picks one. `op` reads the ops between
sites, for `companions`, `propagation` and `padding`. Rules never change the graph. It
imports `operators` and the folders below; `rewrite` and everything above import it.
"""
