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

_ON_FIRST_USE = {
    "interop": ("fold", "fold_graph", "fold_ir"),
    "pipeline": ("inspect", "optimize", "verify"),
    "plan.search.tuning": ("tune",),
    "planning": ("fold_model",),
    "results": ("InspectReport", "OptimizeReport", "SiteReport", "TuneReport", "VerifyReport"),
}
"""Modules and the names that are imported from them on first use."""

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
    for module, names in _ON_FIRST_USE.items():
        if name in names:
            return getattr(import_module(f"widthfold_onnx.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
