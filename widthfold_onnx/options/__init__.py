"""What a caller may choose: frozen dataclasses and enums, checked where they are made."""

from widthfold_onnx.options.folding import (
    FACTORS,
    AxisName,
    FoldOptions,
    Layout,
    NonFinite,
    Shapes,
)
from widthfold_onnx.options.running import Provider, SearchOptions, Tolerance, VerifyOptions

__all__ = [
    "FACTORS",
    "AxisName",
    "FoldOptions",
    "Layout",
    "NonFinite",
    "Provider",
    "SearchOptions",
    "Shapes",
    "Tolerance",
    "VerifyOptions",
]
