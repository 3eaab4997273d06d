"""Carry out a plan on the graph: new nodes, weights and metadata, regions, guards.

It imports `rules` and what it imports, and asks `runtime` of one kernel; `plan` and `evidence`
import it.
"""
