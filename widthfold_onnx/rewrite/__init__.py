"""Apply a plan to the graph."""
