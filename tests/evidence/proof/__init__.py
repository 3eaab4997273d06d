"""The proof by evaluation: what it must prove and what it must find."""
