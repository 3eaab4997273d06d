"""Check that a rewritten model computes the function of the original, and measure its speed.

`verification` starts `checks` in a child process; `checks` calls `interface`, `proof`, `integers`,
`parity` and `timing`, and adds up their `findings`. `inputs` chooses the inputs, and names the
branches that none of them reaches; `model_outputs` runs models on them, with `exact_kernels`.
`saturating_forms` excludes forms from a search. `api` and `pipeline` import it.
"""
