"""Find the forms that may replace a node, or the reason why there is none.

`reading` reads a node by the description of its operator (`operators`) into a site: a weight
[O, C/group, *kernel] that slides over axes of positions. `forms` lists the ways to fold a site,
`legality` checks which of them are legal, and `windows` and `rows` plan the moves of the data.
Rules never change the graph; `rewrite.rewriting` does.
"""
