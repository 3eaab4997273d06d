"""Import onnx_ir, without sympy, for the whole package.

onnx_ir calculates symbolic extents (``N + 1``) with sympy. The import of sympy takes longer
than all other imports together. Nothing here calculates with such extents, so sympy is imported at
its first use.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

__all__ = ["ir"]


class _StandIn(ModuleType):
    """Stands for a module, which is imported when an attribute is first read.

    `importlib.util.LazyLoader` would leave an unloaded sympy in `sys.modules`, where the rest of
    the program finds it. Only modules imported within `_deferred_imports` see this stand-in: every
    later import is the usual one, and its errors are raised where sympy is first used.
    """

    def __getattr__(self, name: str) -> Any:
        _remove(self)
        return getattr(import_module(self.__name__), name)


def _remove(stand_in: _StandIn) -> None:
    if sys.modules.get(stand_in.__name__) is stand_in:
        del sys.modules[stand_in.__name__]


@contextmanager
def _deferred_imports(*names: str) -> Iterator[None]:
    """Replace these modules by stand-ins for imports made inside, unless already loaded."""
    stand_ins = [_StandIn(name) for name in names if name not in sys.modules]
    sys.modules.update((stand_in.__name__, stand_in) for stand_in in stand_ins)
    try:
        yield
    finally:
        for stand_in in stand_ins:
            _remove(stand_in)


# The second one reads extents that are formulas; its import needs functions of sympy.
with _deferred_imports("sympy", "onnx_ir._symbolic_shapes"):
    import onnx_ir as ir  # noqa: TID251 - this module is the door
