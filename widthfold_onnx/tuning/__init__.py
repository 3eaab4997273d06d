"""Decide the plan of a model from measured or predicted times, and keep times in a store.

`search` decides for one model, `tune` measures many. `workload` cuts layers out, `measure` times
them, `cost` predicts them for `targets`; `store` keeps times under keys of `identity`. It imports
`decide`, `runtime` and the parts below them; `api`, `cli` and `pipeline` import it.
"""
