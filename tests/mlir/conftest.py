"""The script that compiles modules, as a module."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest

from tests.shared import ROOT

SCRIPTS = ROOT / "scripts"


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script that writes, compiles and runs modules of one operation."""
    monkeypatch.syspath_prepend(SCRIPTS)
    return importlib.import_module("mlir_module")
