"""Decide what every site of a model becomes, from measured or predicted times."""
