"""Compares what two whole models return on the runtime, on the same inputs.

    models              the order of the steps: run both models, then judge what they returned
    interface           declared inputs and outputs
    reference           runs the original, and copies of it that rounding might have made
    shaken              makes these copies
    float64_reference   runs the original without rounding
    rule                the one rule: no further off than a multiple of what rounding moves
    outputs, figures    one output compared, and all figures of it
    overflow            inputs on which the original itself overflows
    saturated           both models as deployed, where kernels of 8 bits saturate

It reads nothing of the proof but whether it holds.
"""
