"""Read, check, describe, link, change and write models; nothing else handles untrusted files.

`loader` reads a file as a checked ModelProto, `writer` writes one. `proto` holds the model as
messages, `shapes` the extents of its values, `graph` the linked nodes. It imports `options` and the
files below; `operators` and everything above import it.
"""
