"""Import IREE's bindings of MLIR for the whole package, at their first use."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from widthfold_onnx.errors import UsageError

MODULES = {
    "ir": "iree.compiler.ir",
    "tools": "iree.compiler.tools",
    "arith": "iree.compiler.dialects.arith",
    "linalg": "iree.compiler.dialects.linalg",
    "tensor": "iree.compiler.dialects.tensor",
}


def __getattr__(name: str) -> Any:
    """Return one of `MODULES`.

    Raises:
        UsageError: IREE is not installed.
    """
    if name not in MODULES:
        raise AttributeError(name)
    try:
        return import_module(MODULES[name])
    except ImportError as error:
        raise UsageError("MLIR needs IREE: pip install 'widthfold-onnx[mlir]'") from error
