"""Read stored inputs of a model, draw random ones, and find sizes and values for them."""
