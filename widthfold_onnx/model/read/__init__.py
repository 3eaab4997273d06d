"""Read a model file, and refuse a broken or hostile file before any other code sees it.

The bytes are scanned first, then parsed and checked (`check`). It imports `model.proto` and
`model.shapes`; commands and `evidence` import it.
"""
