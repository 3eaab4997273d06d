"""Random models of every kind of node, what they return, and how they are folded."""
