"""Generators of nets, as texts of graphs with weights and as models of published layers."""
