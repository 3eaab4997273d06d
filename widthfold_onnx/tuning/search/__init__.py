"""Search the forms of a whole model: measure, assign, try, decide; the result is a plan.

`search` has the stages: `context`, `companions`, `level_search`, `settling` (by `assign`),
`padding`, `outcome`; `trials` times whole models by `timers`. `pipeline` and `tuning` import it.
"""
