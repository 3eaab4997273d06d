"""Compare the outputs of two whole models on the runtime, on the same inputs.

`original_runs` runs the original on `chosen_inputs`, also as shaken copies, and finds where it
overflows; `truth` runs it in float64. `judgement` runs the rewritten model on the same inputs and
says how far both may be apart (`outputs`); integers of 8 bits it also judges as deployed.

It reads of the proof whether it holds, and its float64 operators.
"""
