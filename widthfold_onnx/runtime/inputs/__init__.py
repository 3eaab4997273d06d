"""Make or read the inputs of a model: recorded, random, and their sizes.

It imports `runtime`; `runtime` and everything above import it.
"""
