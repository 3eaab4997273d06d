"""Prove that two ONNX graphs are the same function, by evaluating both over finite fields.

`field` is the arithmetic, `operators/` the definitions; `evaluate` runs a graph, `compare` two.
It imports `model/` only, so it shares no code with the rewriting; `api` and `evidence` import it.
"""
