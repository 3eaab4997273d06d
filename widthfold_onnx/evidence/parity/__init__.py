"""Compares what two whole models return on the runtime, on the same inputs.

The judge is float64 (`float64_reference`) where it is known, else a tolerance. It reads the proof
only to learn which nodes changed (`overflow`); `evidence.run` decides with what is found here.
"""
