"""Make or read the inputs of a model: recorded, random, and their sizes.

It imports `runtime.sessions`; `runtime.running`, `evidence` and `plan` import it.
"""
