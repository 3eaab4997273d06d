"""Faults in the numbers of the folded weight and bias."""

from __future__ import annotations

import numpy as np

from tests.evidence.mutants.alter import (
    Alter,
    copied_output,
    element,
    exchanged,
    flipped,
    moved_digit,
    moved_tap,
    next_up,
    regrouped,
    rolled,
    swapped,
    transposed,
    turned_kernel,
)
from tests.evidence.mutants.folded import Fault, Folded

ARRAY: dict[str, Alter] = {
    "first_two_outputs_swapped": swapped(0, 0, 1),
    "first_and_last_output_swapped": swapped(0, 0, -1),
    "outputs_rotated": rolled(0),
    "outputs_reversed": flipped(0),
    "output_digits_regrouped": regrouped(0),
    "one_sign": element(0, lambda v: -v),
    "last_is_zero": element(-1, lambda v: 0),
    "first_one_ulp_up": element(0, next_up),
    "last_one_ulp_up": element(-1, next_up),
    "one_percent_off": element(0, lambda v: v * v.dtype.type(1.01)),
    "all_doubled": lambda array: 2 * array,
    "all_negated": lambda array: -array,
    "all_zero": np.zeros_like,
}

WEIGHT: dict[str, Alter] = {
    "first_two_inputs_swapped": swapped(1, 0, 1),
    "first_and_last_input_swapped": swapped(1, 0, -1),
    "inputs_rotated": rolled(1),
    "input_digits_regrouped": regrouped(1),
    "kernel_reversed": flipped(-1),
    "first_kernel_axis_reversed": flipped(2),
    "kernel_rotated": rolled(-1),
    "kernel_turned": turned_kernel,
    "tap_one_later": moved_tap(0, 1),
    "tap_one_earlier": moved_tap(-1, -1),
    "tap_at_next_input": moved_digit,
    "structural_zero_filled": element(0, lambda v: 1e-5, structural=True),
    "last_structural_zero_filled": element(-1, lambda v: 1, structural=True),
    "structural_zero_negative": element(0, lambda v: -v, structural=True),
    "output_copied_from_another": copied_output,
    "two_weights_exchanged": exchanged,
    "inputs_and_outputs_transposed": transposed,
    "rounded_to_half": lambda array: array.astype(np.float16).astype(array.dtype),
}

BIAS: dict[str, Alter] = {
    "one_copy_missing": element(1, lambda v: 0),
    "first_copied_everywhere": lambda array: np.full_like(array, array[0]),
    "sorted": lambda array: np.sort(array),
}


def dropped_bias(folded: Folded) -> bool:
    if len(folded.conv.input) < 3:
        return False
    del folded.conv.input[2]
    return True


def added_bias(folded: Folded) -> bool:
    if len(folded.conv.input) > 2:
        return False
    weight = folded.tensor(folded.conv.input[1])
    folded.conv.input.append(
        folded.constant(np.full(len(weight), 1e-3, weight.dtype), "out_of_nowhere")
    )
    return True


def altered(index: int, alter: Alter) -> Fault:
    return lambda folded: folded.change(index, alter)


FAULTS: dict[str, Fault] = {
    **{f"weight.{name}": altered(1, alter) for name, alter in (ARRAY | WEIGHT).items()},
    **{f"bias.{name}": altered(2, alter) for name, alter in (ARRAY | BIAS).items()},
    "bias.dropped": dropped_bias,
    "bias.added": added_bias,
}
