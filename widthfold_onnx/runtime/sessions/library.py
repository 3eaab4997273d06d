"""Imports ONNX Runtime; no other module does.

It is imported on first use, so that rewriting works without it.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.text import printable

_FATAL = 4
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
    onnxruntime.set_default_logger_severity(_FATAL)
    return onnxruntime


def quiet_options(entries: Mapping[str, str]) -> Any:
    """Return the options of a session that prints nothing, with these entries."""
    options = runtime().SessionOptions()
    options.log_severity_level = _FATAL
    for name, value in entries.items():
        options.add_session_config_entry(name, value)
    return options


def new_session(model: bytes | str, options: Any, providers: Sequence[object]) -> Any:
    """Return a session that tries no other providers than these.

    Older releases try others all the same if it cannot be made, and print so.

    Raises:
        Exception: one of `failures`.
    """
    with contextlib.redirect_stdout(io.StringIO()):
        session = runtime().InferenceSession(model, options, providers=providers, enable_fallback=0)
    session.disable_fallback()  # of runs, for the same releases
    return session


@cache
def failures() -> tuple[type[Exception], ...]:
    """Return the runtime's own exceptions, without common base, and the two of its Python layer."""
    binding = runtime().capi.onnxruntime_pybind11_state
    own = [item for item in vars(binding).values() if isinstance(item, type)]
    return (RuntimeError, ValueError, *(item for item in own if issubclass(item, Exception)))
