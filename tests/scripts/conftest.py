"""The scripts as modules, and a CPU under the name of CUDA."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.shared import ROOT
from widthfold_onnx.options import Provider
from widthfold_onnx.runtime import session as session_module
from widthfold_onnx.runtime.provider_traits import traits_of

SCRIPTS = ROOT / "scripts"


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the scripts, from which modules can be imported."""
    monkeypatch.syspath_prepend(SCRIPTS)
    return SCRIPTS


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The CPU under the name of CUDA; collects the options of all sessions."""
    seen: list[dict[str, str]] = []
    cpu = "CPUExecutionProvider"

    def ranking(
        provider: Provider, chosen: dict[str, str], threads: int, *, tf32: bool
    ) -> list[Any]:
        if provider is Provider.CUDA:
            seen.append({**chosen, "tf32": str(int(tf32))})
        return [(cpu, {})]

    monkeypatch.setattr(session_module, "ranking", ranking)
    monkeypatch.setattr(session_module, "usable_provider", lambda provider: provider)
    monkeypatch.setattr(session_module, "traits_of", lambda provider: traits_of(Provider.CPU))
    return seen
