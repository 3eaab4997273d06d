"""Options of the caller: frozen dataclasses and enums that check themselves."""

from widthfold_onnx.options.folding import (
    FACTORS,
    SMALLEST_FACTOR,
    STRIDES_ALONE,
    AxisName,
    Companion,
    FoldOptions,
    Form,
    Layout,
    NonFinite,
    Shapes,
    Values,
)
from widthfold_onnx.options.running import (
    Effort,
    Provider,
    RuntimeOptions,
    SearchOptions,
    Tolerance,
    VerifyOptions,
)
