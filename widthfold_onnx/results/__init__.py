"""What each verb returns. The same structs are the JSON reports; `schemas/` holds their schema."""

from widthfold_onnx.results.base import Result
from widthfold_onnx.results.evidence import (
    AxisPattern,
    Environment,
    ExactSite,
    OutputParity,
    VerifyReport,
    WorstElement,
)
from widthfold_onnx.results.sites import (
    Choice,
    InspectReport,
    InspectSite,
    OptimizeReport,
    OptimizeSummary,
    SiteReport,
)
from widthfold_onnx.results.timing import NodeTime, Side, Timing

__all__ = [
    "AxisPattern",
    "Choice",
    "Environment",
    "ExactSite",
    "InspectReport",
    "InspectSite",
    "NodeTime",
    "OptimizeReport",
    "OptimizeSummary",
    "OutputParity",
    "Result",
    "Side",
    "SiteReport",
    "Timing",
    "VerifyReport",
    "WorstElement",
]
