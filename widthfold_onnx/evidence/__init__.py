"""Check that a rewritten model computes the function of the original, and measure its speed.

`verification` starts `checks` in a child process; `checks` calls `interface`, `proof`, `integers`,
`parity` and `timing`, and adds up their `findings`. `runs` chooses the inputs, runs models on them
with `exact_kernels`, and names the branches that none of them reaches. `saturation` judges integers
of 8 bits as deployed, and excludes forms from a search. `pipeline` imports it.
"""
