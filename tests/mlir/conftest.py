from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script that writes, compiles and runs modules of one operation."""
    monkeypatch.syspath_prepend(SCRIPTS)
    return importlib.import_module("mlir_module")
