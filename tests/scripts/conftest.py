from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the scripts, from which modules can be imported."""
    monkeypatch.syspath_prepend(SCRIPTS)
    return SCRIPTS
