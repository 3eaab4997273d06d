"""Read a node as a site: its weight, geometry, quantization and samples, or why it is none.

It imports `operators`, `model` and `algebra`; the other folders of `rules` and all packages above
import it.
"""
