"""Write a model: in one step, with its external data beside it, never over what others need.

It imports `model.proto` alone; `delivery` and the tests import it.
"""
