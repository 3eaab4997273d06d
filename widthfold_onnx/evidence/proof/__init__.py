"""Proves that two ONNX graphs are the same function, by evaluating both over finite fields.

`field` is the arithmetic, `values` are the tensors, `operators/` says what each operator means,
`evaluate` runs a graph, and `compare` compares two of them. Nothing here knows what a fold is: the
package imports `model/` only, so that the proof shares no code with what it judges.
"""
