"""Check that a rewritten model computes what the original computes, and measure how fast.

`files` starts `run` in a child process; `run` calls `proof`, `parity`, `integers` and `timing`.
It imports `decide` and everything below; `api`, `delivery` and `pipeline` import it.
"""
