"""Compare the outputs of two whole models on the runtime, on the same inputs.

`original_runs` runs the original on `chosen_inputs`. `comparison` runs the rewritten model on the
same inputs. `judgement` says how far their `outputs` may be apart; for that `rounding` asks shaken
copies of the original, and its run in float64 (`truth`). Integers of 8 bits are also judged
`as_deployed`.

It uses two things of `proof`: the verdict, and the float64 operators.
"""
