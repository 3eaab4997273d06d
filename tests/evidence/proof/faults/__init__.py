"""Faults drawn from all that a number, a node or an output of a folded model has room for.

The faults of `tests/evidence/mutants` have names, and some break the code that folds.
"""
