"""Gathers evidence that a rewritten model computes what the original computes, and how fast."""
