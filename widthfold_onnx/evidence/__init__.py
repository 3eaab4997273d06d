"""Check that a rewritten model computes what the original computes, and measure how fast.

`files` starts `run` in a child process; `run` calls `proof`, `parity`, `integers` and `timing`.
`delivery` and `pipeline` import this package, and it imports everything below `decide`.
"""
