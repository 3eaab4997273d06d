"""Fold linalg operations of an MLIR module: the paper's pass in a compiler's own language.

`operations` reads them as layers, `emission` replaces them by folded operations, `files` folds a
file. IREE's bindings of MLIR are attributes of this package (`mlir.linalg`), imported on first use.
Forms, moves and weights come from `algebra`, `rules` and `rewrite`, as for an ONNX model.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from widthfold_onnx.errors import UsageError

BINDINGS = {
    "ir": "iree.compiler.ir",
    "tools": "iree.compiler.tools",
    "arith": "iree.compiler.dialects.arith",
    "linalg": "iree.compiler.dialects.linalg",
    "tensor": "iree.compiler.dialects.tensor",
}


def __getattr__(name: str) -> Any:
    """Import one of `BINDINGS`.

    Raises:
        UsageError: IREE is not installed.
    """
    if name not in BINDINGS:
        raise AttributeError(name)
    try:
        return import_module(BINDINGS[name])
    except ImportError as error:
        raise UsageError("MLIR needs IREE: pip install 'widthfold-onnx[mlir]'") from error
