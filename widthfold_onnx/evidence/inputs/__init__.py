"""Chooses inputs that show something: sizes, values of small inputs, ranges of quantizers."""
