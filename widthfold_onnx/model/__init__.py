"""Reads, checks, edits and writes model files; nothing else handles untrusted models."""
