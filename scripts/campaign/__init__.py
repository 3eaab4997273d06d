"""The parts of published.py: its list of models, their fetching, judging and the tables."""
