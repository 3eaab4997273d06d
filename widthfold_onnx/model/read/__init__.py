"""Read a model file, and refuse what is broken or hostile before anything else looks at it.

The bytes are scanned first, then parsed and checked (`check`). It imports `model.proto` and
`model.shapes`; commands and `evidence` import it.
"""
