"""Represent a refusal as a value that says why something was left alone, never a silent False."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Code(StrEnum):
    """Every reason for a refusal."""

    # A constant.
    NOT_CONSTANT = "not-constant"
    TRAINED = "trained"
    OVERRIDABLE = "overridable"
    TOO_LARGE = "too-large"
    WEIGHT_NOT_CONSTANT = "weight-not-constant"
    WEIGHT_TRAINED = "weight-trained"
    WEIGHT_OVERRIDABLE = "weight-overridable"
    WEIGHT_NOT_EVALUATED = "weight-not-evaluated"
    BIAS_NOT_CONSTANT = "bias-not-constant"
    BIAS_TRAINED = "bias-trained"
    BIAS_OVERRIDABLE = "bias-overridable"
    BIAS_NOT_EVALUATED = "bias-not-evaluated"

    # A node that is read.
    IN_FUNCTION = "in-function"
    SHARDED = "sharded"
    DTYPE_UNSUPPORTED = "dtype-unsupported"
    RANK_UNSUPPORTED = "rank-unsupported"
    UNKNOWN_SHAPE = "unknown-shape"
    UNKNOWN_TYPE = "unknown-type"
    WEIGHT_ANNOTATED = "weight-annotated"
    INCONSISTENT_SHAPES = "inconsistent-shapes"
    INCONSISTENT_ATTRIBUTES = "inconsistent-attributes"
    CONSTANT_PRODUCT = "constant-product"
    ADDS_A_TENSOR = "adds-a-tensor"
    NEGATIVE_SAME_PADS = "negative-same-pads"
    OUTPUT_TOO_LARGE = "output-too-large"
    QUANTIZED_PER_POSITION = "quantized-per-position"
    QUANTIZED_NOT_CONSTANT = "quantized-not-constant"
    WEIGHT_ZERO_POINT_COMPUTED = "weight-zero-point-computed"
    INEXACT = "inexact"
    NO_PADS = "no-pads"
    NO_PRODUCT = "no-product"
    ACCUMULATOR_OVERFLOW = "accumulator-overflow"

    # A site as a whole.
    ALREADY_FOLDED = "already-folded"
    SAME_NAME = "same-name"
    NOT_SELECTED = "not-selected"
    SATURATES = "saturates"
    ALREADY_WIDE = "already-wide"
    WEIGHT_NOT_FINITE = "weight-not-finite"
    NO_SUCH_AXIS = "no-such-axis"
    NO_STRIDES = "no-strides"
    DTYPE_UNMEASURED = "dtype-unmeasured"
    NO_GAIN = "no-gain"
    PADDED = "padded"

    # A part of a plan, or a site that it does not name.
    MISFIT = "differs-from-plan"
    NOT_PLANNED = "not-planned"

    # A packed op, or what stops a region.
    NOT_CARRIED = "not-carried"
    MORE_OUTPUTS = "more-outputs"
    NOT_INFERENCE = "not-inference"
    NOT_PACKED = "not-packed"
    SHAPES_DIFFER = "shapes-differ"
    OTHER_RANK = "other-rank"
    OTHER_AXIS = "other-axis"
    CONSTANT_VARIES = "constant-varies"
    IMPLICIT_EXTENT = "implicit-extent"
    UNEVEN_PARTS = "uneven-parts"
    ALONG_FOLDED_AXIS = "along-folded-axis"
    OVERFLOW = "overflow"
    OUTPUT = "output"
    ANOTHER_FOLD = "another-fold"
    IN_A_BODY = "in-a-body"
    MOVES_MORE = "moves-more"
    CUT = "cut"
    GROUPED_CHANNELS_LAST = "grouped-channels-last"
    NO_CHANNELS = "no-channels"

    # A node between padded channels.
    ACROSS_CHANNELS = "across-channels"
    GROUPS_OF_ONE = "groups-of-one"
    PADDING_VARIES = "padding-varies"
    PADDING_NOT_ZERO = "padding-not-zero"
    PADDING_NOT_FINITE = "padding-not-finite"
    PADDING_UNKNOWN = "padding-unknown"

    # A form of a layer; some of them also refuse a whole layer or another node.
    EMPTY_TENSOR = "empty-tensor"
    ONE_POSITION = "one-position"
    TOO_SHORT = "too-short"
    STRIDE_MISMATCH = "stride-mismatch"
    TAPS_CROSS_BLOCKS = "taps-cross-blocks"
    BLOCKS_DO_NOT_COVER = "blocks-do-not-cover"
    FACTOR_DOES_NOT_DIVIDE = "factor-does-not-divide"
    UNKNOWN_EXTENT = "unknown-extent"
    QUANTIZED = "quantized"
    EXTENSION_UNSUPPORTED = "extension-unsupported"
    SEVERAL_UNKNOWN_EXTENTS = "several-unknown-extents"
    MIXES_SAMPLES = "mixes-samples"
    JOINED_CHANNELS = "joined-channels"
    STRUCTURAL_ZEROS = "structural-zeros"
    ZEROS_LEFT_OUT = "zeros-left-out"
    WEIGHT_TOO_LARGE = "weight-too-large"
    BYTES_GROWTH = "bytes-growth"
    FLOPS_GROWTH = "flops-growth"
    OPSET_TOO_OLD = "opset-too-old"
    GUARD_NOT_LOADABLE = "guard-not-loadable"
    GUARD_NOT_PROVED = "guard-not-proved"
    FOLD_NOT_PROVED = "fold-not-proved"

    @property
    def is_of_a_form(self) -> bool:
        """True if it may be the reason of one form of a layer, while another form is legal."""
        return self in FORM_CHECKS


FORM_CHECKS = (
    Code.EMPTY_TENSOR,
    Code.ONE_POSITION,
    Code.TOO_SHORT,
    Code.STRIDE_MISMATCH,
    Code.TAPS_CROSS_BLOCKS,
    Code.BLOCKS_DO_NOT_COVER,
    Code.FACTOR_DOES_NOT_DIVIDE,
    Code.UNKNOWN_EXTENT,
    Code.QUANTIZED,
    Code.EXTENSION_UNSUPPORTED,
    Code.SEVERAL_UNKNOWN_EXTENTS,
    Code.MIXES_SAMPLES,
    Code.JOINED_CHANNELS,
    Code.STRUCTURAL_ZEROS,
    Code.ZEROS_LEFT_OUT,
    Code.WEIGHT_TOO_LARGE,
    Code.BYTES_GROWTH,
    Code.FLOPS_GROWTH,
    Code.OPSET_TOO_OLD,
    Code.GUARD_NOT_LOADABLE,
    Code.GUARD_NOT_PROVED,
    Code.FOLD_NOT_PROVED,
)
"""Codes that may refuse one form of a layer; a form with a later code is nearer to being legal."""


@dataclass(frozen=True)
class Refusal:
    """The reason why a constant, a node, a form or an op between layers is left alone.

    Attributes:
        code: stable word for programs.
        reason: one sentence for people, with the numbers in it.
        growth: for `FACTOR_DOES_NOT_DIVIDE`: elements that the form needs / elements of the tensor,
            e.g. 40/33 for a width of 33 at a factor of 8. Else 1.
    """

    code: Code
    reason: str
    growth: float = 1.0

    @property
    def nearness(self) -> tuple[int, float]:
        """Sort key: of two refused forms, the one with the larger key is nearer to being legal."""
        stage = FORM_CHECKS.index(self.code) if self.code in FORM_CHECKS else -1
        return stage, -self.growth
