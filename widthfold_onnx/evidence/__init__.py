"""Check that a rewritten model computes the function of the original, and measure its speed.

`files` starts `run` in a child process; `run` calls `interface`, `proof`, `integers`, `parity` and
`timing`, and adds up their `findings`. `inputs` chooses the inputs, and `branches` names the
branches that no input reaches; `runs` runs models on them, with `exact_kernels`. `saturating_forms`
excludes forms from a search. `evidence` imports `decide` and everything below; `api` and `pipeline`
import it.
"""
