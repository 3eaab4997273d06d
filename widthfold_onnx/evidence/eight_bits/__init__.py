"""Judges quantized models where this CPU's kernels of 8 bits saturate (`runtime.saturation`).

Exact kernels compute the values that are compared; outputs as deployed are checked against them.
"""
