"""Judges quantized models where this CPU's kernels of 8 bits saturate (`runtime.saturation`).

Values are compared by exact kernels, and what both models return as deployed is held against them.
"""
