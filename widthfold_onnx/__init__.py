"""Fold the low-channel layers of an ONNX model, exactly, and verify the result.

>>> from pathlib import Path
>>> import widthfold_onnx as wf
>>> report = wf.optimize(Path("models/paper_conv.onnx"), None, wf.FoldOptions(factor=8))
>>> [(site.status, site.axis, site.form) for site in report.sites]
[('folded', 'width', 'move blocked')]
"""

from importlib import import_module
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
    Companion,
    Effort,
    FoldOptions,
    Form,
    Layout,
    NonFinite,
    Provider,
    SearchOptions,
    Tolerance,
    VerifyOptions,
)

if TYPE_CHECKING:
    from widthfold_onnx.interop import fold, fold_graph, fold_ir
    from widthfold_onnx.pipeline import inspect, optimize, verify
    from widthfold_onnx.plan.search.tuning import tune
    from widthfold_onnx.planning import fold_model
    from widthfold_onnx.results import (
        InspectReport,
        OptimizeReport,
        SiteReport,
        TuneReport,
        VerifyReport,
    )

_HOMES = {
    "InspectReport": "results",
    "OptimizeReport": "results",
    "SiteReport": "results",
    "TuneReport": "results",
    "VerifyReport": "results",
    "fold": "interop",
    "fold_graph": "interop",
    "fold_ir": "interop",
    "fold_model": "planning",
    "inspect": "pipeline",
    "optimize": "pipeline",
    "tune": "plan.search.tuning",
    "verify": "pipeline",
}
"""Modules of the names that are imported on first use."""

__all__ = [
    "AxisName",
    "CheckFailedError",
    "Companion",
    "Effort",
    "FoldOptions",
    "Form",
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
    "fold",
    "fold_graph",
    "fold_ir",
    "fold_model",
    "inspect",
    "optimize",
    "tune",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Import on first use: `--help` needs no onnx, and `fold` and `runtime` only numpy and onnx."""
    if name in _HOMES:
        return getattr(import_module(f"widthfold_onnx.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
