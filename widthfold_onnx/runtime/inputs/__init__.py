"""Make or read the inputs of a model: recorded, random, and their sizes.

It imports `runtime.session` and `runtime.descriptions`; `runtime` and everything above import it.
"""
