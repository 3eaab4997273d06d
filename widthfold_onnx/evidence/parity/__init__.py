"""Compares what two whole models return on the runtime, on the same inputs.

    models              the order of the steps: run both models, then judge what they returned
    interface           declared inputs and outputs
    reference           runs the original, copies of it that rounding might have made, and says
                        on which inputs it overflows
    runs                runs a model on all inputs
    shaken              makes these copies
    float64_reference   runs the original without rounding
    rule                the one rule: no further off than a multiple of what rounding moves
    outputs, figures    one output compared on one input set, and how far it is off
    saturated           both models as deployed, where kernels of 8 bits saturate

It reads nothing of the proof but whether it holds.
"""
