"""Random models of every kind of node, with their outputs and the options of their folds."""
