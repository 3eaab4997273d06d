"""Compare what two whole models return on the runtime, on the same inputs.

`models` has the order of the steps: `interface`, `reference` and its `shaken` copies, then `rule`.
It reads of the proof only whether it holds; `evidence` imports it.
"""
