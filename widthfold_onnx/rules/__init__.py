"""What may replace a node, or why nothing may.

`RULES` maps an operator to its rule: read the node into a site, then find its cheapest
reformulation. A rule never changes the graph; `rewrite.engine` does.
"""
