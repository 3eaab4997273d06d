"""Decide the plan of a model from measured or predicted times, and keep times in a store.

`search` decides for one model, `tune` measures many. `layers` lists the layers of a model with
their forms, `workloads` cuts them out, `cost` predicts their times for `targets`. `bench` answers
from the `store` or measures: `successive_halving` races forms here or on a `cluster`, as long as
`effort` says; a `measurement` is the result.
"""
