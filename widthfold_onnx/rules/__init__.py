"""Find the forms that may replace a node, or the reason why there is none.

`reading` reads a node by the description of its operator (`operators`) into a site: a weight
[O, C/group, *kernel] that slides over axes of positions. There are two families: a `ConvSite` is
folded along batch and spatial axes (`windows`), a `ProductSite` along rows or columns (`rows`).
`enumeration` lists the ways to fold a site, and `legality` checks which of them are legal.
Rules never change the graph; `rewrite.rewriting` does.
"""
