"""Times two models in alternating pairs on the runtime, and says what they were timed on.

It knows nothing of folds, proof and parity; `evidence.run` and the scripts use it.
"""
