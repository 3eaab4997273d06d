"""Make or read the inputs of a model: recorded, random, and their sizes.

It imports `runtime.sessions`; `evidence` and `tuning` import it.
"""
