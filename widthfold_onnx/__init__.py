"""Fold the low-channel layers of an ONNX model, exactly, and verify the result.

>>> from pathlib import Path
>>> import widthfold_onnx as wf
>>> report = wf.optimize(Path("models/paper_conv.onnx"), None, wf.FoldOptions(factor=8))
>>> [(site.status, site.axis, site.form) for site in report.sites]
[('folded', 'width', 'move blocked')]
"""

from typing import TYPE_CHECKING, Any

from widthfold_onnx.errors import (
    CheckFailedError,
    InternalError,
    InvalidModelError,
    NothingFoldedError,
    UnverifiedError,
    UsageError,
    WidthfoldError,
)
from widthfold_onnx.options import (
    AxisName,
    FoldOptions,
    Layout,
    NonFinite,
    Provider,
    SearchOptions,
    Tolerance,
    VerifyOptions,
)
from widthfold_onnx.results import (
    InspectReport,
    OptimizeReport,
    SiteReport,
    TuneReport,
    VerifyReport,
)

if TYPE_CHECKING:
    from widthfold_onnx.interop import fold_graph
    from widthfold_onnx.pipeline import fold_model, inspect, optimize, verify
    from widthfold_onnx.plan.tuning import tune

__all__ = [
    "AxisName",
    "CheckFailedError",
    "FoldOptions",
    "InspectReport",
    "InternalError",
    "InvalidModelError",
    "Layout",
    "NonFinite",
    "NothingFoldedError",
    "OptimizeReport",
    "Provider",
    "SearchOptions",
    "SiteReport",
    "Tolerance",
    "TuneReport",
    "UnverifiedError",
    "UsageError",
    "VerifyOptions",
    "VerifyReport",
    "WidthfoldError",
    "fold_graph",
    "fold_model",
    "inspect",
    "optimize",
    "tune",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Import the verbs on first use: the command line answers `--help` without onnx and numpy."""
    if name == "fold_graph":
        from widthfold_onnx import interop

        return interop.fold_graph
    if name == "tune":
        from widthfold_onnx.plan import tuning

        return tuning.tune
    if name in {"fold_model", "inspect", "optimize", "verify"}:
        from widthfold_onnx import pipeline

        return getattr(pipeline, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
