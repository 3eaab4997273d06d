"""Compare the outputs of two whole models on the runtime, on the same inputs.

`models` has the order of the steps: `reference` runs the original, also as a copy (`shaken`), and
finds where it overflows; `truth` runs it in float64; `judgement` says how far both may be apart
(`outputs`); `saturated` judges integers of 8 bits as deployed.

It reads of the proof whether it holds, and its float64 operators; `evidence` imports it.
"""
