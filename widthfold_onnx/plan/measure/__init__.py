"""Measure workloads in child processes, on this machine or on the workers of a cluster.

It imports `runtime`, `plan.workload` and `plan.store`; `plan.search` imports it.
"""
