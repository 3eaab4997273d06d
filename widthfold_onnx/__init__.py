"""Fold the low-channel layers of an ONNX model, exactly, and verify the result.

>>> import widthfold_onnx as wf
>>> print(wf.plan("models/paper_conv.onnx", factor=8))
conv  width by 8, blocked
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

from widthfold_onnx.errors import (
    CheckFailedError,
    InternalError,
    InvalidModelError,
    NothingChangedError,
    UnverifiedError,
    UsageError,
    WidthfoldError,
)

if _TYPE_CHECKING:
    from widthfold_onnx.api import (
        WidthFold,
        apply,
        fold,
        inspect,
        optimize,
        plan,
        tune,
        verify,
    )
    from widthfold_onnx.pipeline import Result
    from widthfold_onnx.results import InspectReport, OptimizeReport, TuneReport, VerifyReport
    from widthfold_onnx.rewrite.plan import Plan

_ON_FIRST_USE = {
    "api": (
        *("Result", "WidthFold", "apply", "fold", "inspect", "optimize", "plan", "tune", "verify"),
        *("InspectReport", "OptimizeReport", "TuneReport", "VerifyReport"),
    ),
    "rewrite.plan": ("Plan",),
}
"""Modules and the names that are imported from them on first use."""

__all__ = [
    "CheckFailedError",
    "InspectReport",
    "InternalError",
    "InvalidModelError",
    "NothingChangedError",
    "OptimizeReport",
    "Plan",
    "Result",
    "TuneReport",
    "UnverifiedError",
    "UsageError",
    "VerifyReport",
    "WidthFold",
    "WidthfoldError",
    "apply",
    "fold",
    "inspect",
    "optimize",
    "plan",
    "tune",
    "verify",
]


def __getattr__(name: str) -> object:
    """Import on first use: `--help` needs no onnx."""
    for module, names in _ON_FIRST_USE.items():
        if name in names:
            return getattr(_import_module(f"widthfold_onnx.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the API, and nothing else."""
    return sorted(__all__)
