"""Check that a rewritten model computes what the original computes, and measure how fast.

`files` starts `run` in a child process; `run` calls `interface`, `proof`, `integers`, `parity` and
`timing`. `inputs` chooses what models run on, `branches` names parts that none reached;
`model_runs` and `exact_kernels` run them. `saturating_forms` excludes forms from a search. It
imports `decide` and everything below; `api` and `pipeline` import it.
"""
