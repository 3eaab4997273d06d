"""Compare what two whole models return on the runtime, on the same inputs.

`models` has the order of the steps: `reference` runs the original, also as a copy (`shaken`);
`truth` runs it in float64; `judgement` says how far both may be apart (`outputs`); `overflow` finds
input sets to leave out; `saturated` judges integers of 8 bits as deployed.

It reads of the proof whether it holds, and its float64 operators; `evidence` imports it.
"""
