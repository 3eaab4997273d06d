"""What may replace a node, or why nothing may.

A rule reads a node into a site (`conv_site`), lists the ways to fold it (`conv`) and says which
of them are legal (`legality`). It never changes the graph; `rewrite.engine` does.
"""
