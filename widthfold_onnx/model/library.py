"""Import onnx_ir, without sympy, for the whole package.

onnx_ir calculates symbolic extents (``N + 1``) with sympy. The import of sympy takes longer
than all other imports together. Nothing here calculates with such extents, so sympy is imported at
its first use.

The modules of onnx_ir are executed with an ``import`` statement of their own, which gives them a
stand-in. Other modules, in this thread or another one, never see it: no entry of `sys.modules`
changes.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["ir"]

DEFERRED = frozenset({"sympy", "onnx_ir._symbolic_shapes"})
"""The second one reads extents that are formulas; its import needs functions of sympy."""


class _StandIn(ModuleType):
    """Stands for a module, which is imported when an attribute is read."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self.__name__), name)


class _Package(ModuleType):
    """A package as ``from package import a, b`` reads it, with stand-ins for some modules."""

    def __init__(self, package: ModuleType, stand_ins: Mapping[str, ModuleType]) -> None:
        super().__init__(package.__name__)
        self._package, self._stand_ins = package, stand_ins

    def __getattr__(self, name: str) -> Any:
        return self._stand_ins.get(name) or getattr(self._package, name)


def _import(
    name: str,
    globals_: Mapping[str, object] | None = None,
    locals_: Mapping[str, object] | None = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> ModuleType:
    """Import as the statement does, but return stand-ins for `DEFERRED`."""
    if name in DEFERRED and not fromlist:
        return _StandIn(name)
    stand_ins = {n: _StandIn(f"{name}.{n}") for n in fromlist or () if f"{name}.{n}" in DEFERRED}
    others = [n for n in fromlist or () if n not in stand_ins]
    module = builtins.__import__(name, globals_, locals_, others, level)
    return _Package(module, stand_ins) if stand_ins else module


class _Loader(SourceFileLoader):
    """Executes a module with `_import` as its import statement."""

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": _import}
        super().exec_module(module)


@contextmanager
def _deferred_imports(package: str) -> Iterator[None]:
    """Load the modules of a package, without its folders, by `_Loader`.

    A package that does not lie in a folder of its own, as in an archive, is imported as usual.
    """
    spec = find_spec(package)
    if spec is None or spec.origin is None or not isinstance(spec.loader, SourceFileLoader):
        yield
        return
    folder = str(Path(spec.origin).parent)
    # The entry of one folder, not `sys.meta_path`: threads that import something else iterate that.
    sys.path_importer_cache[folder] = FileFinder(folder, (_Loader, SOURCE_SUFFIXES))
    try:
        yield
    finally:
        sys.path_importer_cache.pop(folder, None)


with _deferred_imports("onnx_ir"):
    import onnx_ir as ir  # noqa: TID251 - this module is the door
