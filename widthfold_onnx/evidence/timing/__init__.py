"""Time two models (`runtime.paired_benchmark`), judge the result, and explain it.

It knows nothing of folds, proof and parity; `evidence` imports it.
"""
