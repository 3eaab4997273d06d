"""Find the extents of every value: numbers, or None where they depend on data or open inputs.

`table` holds extents by graph and name, `evaluation` derives them; the other files serve it.
It imports `model.proto`; `model` and everything above import it.
"""
