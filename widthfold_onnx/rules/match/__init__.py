"""Read a node as a site: its weight, geometry, quantization and samples, or refuse it.

There are two families: a `ConvSite` is folded along batch and spatial axes, a `ProductSite` along
rows or columns. It imports `operators`, `model` and `algebra`; `rules` and everything above import
it.
"""
