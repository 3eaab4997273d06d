"""Check that a rewritten model computes the function of the original, and measure its speed.

`files` starts `run` in a child process; `run` calls `interface`, `proof`, `integers`, `parity` and
`timing`. `inputs` chooses the inputs of the runs, `branches` names branches that no input reached,
and `model_runs` and `exact_kernels` run models. `saturating_forms` excludes forms from a search.
`evidence` imports `decide` and everything below; `api` and `pipeline` import it.
"""
