"""Measure workloads in child processes, on this machine or on the workers of a cluster.

It imports `runtime`, `tuning.workload` and `tuning.store`; `tuning` imports it.
"""
