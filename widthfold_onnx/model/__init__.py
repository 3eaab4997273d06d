"""The model file and the graph in it: the only code that trusts or distrusts what it reads."""
