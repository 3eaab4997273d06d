"""Decide the plan of a model from measured or predicted times, and keep times in a store.

It imports `decide`, `runtime` and the parts below them; `api`, `cli` and `pipeline` import it.
"""
