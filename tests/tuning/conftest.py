"""The path of a store."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Path for a store; its folder is not there yet."""
    return tmp_path / "folder" / "store.sqlite"
