"""Measure the time, the memory and the energy of a pair of models, and judge them.

`speed` judges both models at the settings that suit them best; `requirement` compares the result
with the least speed-up that the caller asks for, or with a saved report. `profile` measures the
nodes, and `resource_usage` memory and energy. `evidence` imports it.
"""
