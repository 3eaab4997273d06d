"""Find the extents of every value: numbers, or None where they depend on data or open inputs.

`table` holds extents by graph and name; `inference`, `arithmetic` and `fact` serve it.
"""
