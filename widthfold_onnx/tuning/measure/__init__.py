"""Measure workloads in child processes, on this machine or on the workers of a cluster.

`bench` answers from the store or measures: `successive_halving` races forms, `children` or a
`cluster` run them, `effort` says how long. It imports `runtime`, `tuning.workload` and
`tuning.store`; `tuning` imports it.
"""
