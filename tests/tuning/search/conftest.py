"""The model that most tests of the search measure."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.small_models import build, save
from tests.tuning.search.nets import THREE


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save(build(THREE), tmp_path / "model.onnx")
