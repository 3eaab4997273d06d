"""Predict the time of a layer on a target: its work, a roofline, data on devices.

It imports `fold`, `model` and `rules`; `tuning.workload` and `tuning.search` import it.
"""
