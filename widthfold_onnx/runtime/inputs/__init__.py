"""Make or read the inputs of a model: recorded, random, and their sizes.

`runtime` and everything above import it.
"""
