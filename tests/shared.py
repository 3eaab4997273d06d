"""Where the real models and generators lie, if they are there at all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"
MODELS = sorted((SHARED / "models").glob("*.onnx"))

needs_models = pytest.mark.skipif(not MODELS, reason=f"no real models in {SHARED / 'models'}")


def generate(script: str, folder: Path) -> Path:
    """Run one of the generators of hostile or tricky models; skip, loudly, without it."""
    path = SHARED / script
    if not path.is_file():
        pytest.skip(f"no generator {path}")
    subprocess.run([sys.executable, path, folder], check=True, capture_output=True)
    return folder
