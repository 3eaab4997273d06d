"""Imports ONNX Runtime; no other module does.

It is imported on first use, so that rewriting works without it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.text import printable

FATAL = 4
"""Severity at which the runtime's logger prints fatal errors only."""


@cache
def runtime() -> Any:
    """Return the module.

    Raises:
        UnverifiedError: it is not installed.
    """
    try:
        import onnxruntime  # noqa: TID251 - this file is the one door to the runtime
    except ImportError as error:
        raise UnverifiedError(
            f"ONNX Runtime cannot be imported ({printable(str(error))}): "
            "pip install 'widthfold-onnx[cpu]', or [gpu] for CUDA"
        ) from error
    onnxruntime.set_default_logger_severity(FATAL)
    return onnxruntime


@cache
def failures() -> tuple[type[Exception], ...]:
    """Return the runtime's own exceptions, without common base, and the two of its Python layer."""
    binding = runtime().capi.onnxruntime_pybind11_state
    own = [item for item in vars(binding).values() if isinstance(item, type)]
    return (RuntimeError, ValueError, *(item for item in own if issubclass(item, Exception)))
