"""Compare the outputs of two whole models on the runtime, on the same inputs.

`judgement` has the order of the steps, and says how far both may be apart (`outputs`); integers of
8 bits it also judges as deployed. `runs` chooses the inputs, runs models on them, and names the
branches that none of them reaches. `original_runs` runs the original, also as shaken copies, and
finds where it overflows; `truth` runs it in float64.

It reads of the proof whether it holds, and its float64 operators.
"""
