"""The generator of traps, and their names."""

from __future__ import annotations

SCRIPT = "traps/make_traps.py"

NAMES = [
    *("overridable_weight", "shared_weight", "inner_value_is_output", "output_is_initializer"),
    *("constant_if", "two_random_nodes", "pad_nonzero_value", "pad_before_avgpool"),
    *("pad_before_maxpool", "times_zero", "negative_zero", "cast_through_fp16"),
    *("fp16_scale_overflow", "reshape_zero_minus_one", "reshape_allowzero_empty"),
    *("dynamic_shape_reshape", "slice_slice_negative", "per_width_add"),
    *("per_width_add_c_equals_w", "per_width_mul_c_equals_w", "column_bias"),
    *("fold_row_nonfinite", "fold_signal_nonfinite", "fold_batch_isolation"),
    *("fold_padded_reciprocal", "fold_int8_zero_point", "fold_cube"),
]
