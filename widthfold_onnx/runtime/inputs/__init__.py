"""Make or read the inputs of a model: stored sets, random sets, and their sizes."""
