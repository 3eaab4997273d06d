"""Measure the time of a pair of models, and judge it.

`speed` judges both models at the settings that suit them best; `requirement` compares the result
with the least speed-up that the caller asks for, or with a saved report. `profile` measures the
nodes.
"""
