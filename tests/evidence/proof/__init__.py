"""The proof by evaluation: models that it must prove, and faults that it must find."""
