"""Decide the form of every site, and say for the report what that means.

Nothing is changed here: the decisions are a value that `rewrite` carries out. It imports `rules`
and `rewrite`; `tuning.workload`, `tuning.search` and the commands import it.
"""
