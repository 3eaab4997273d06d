"""The wheel: the same bytes wherever it is built, complete, and enough by itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.shared import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCES = ("pyproject.toml", "README.md", "widthfold_onnx")

pytestmark = pytest.mark.slow  # pip fetches hatchling, and the dependencies


def run(*command: str | Path, folder: Path) -> str:
    """Output of a command that finds the packages of its own environment alone."""
    outer = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    variables = {name: value for name, value in os.environ.items() if name not in outer}
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def built(folder: Path, *, later: int = 0, rights: int = 0o644) -> Path:
    """The wheel of a copy of the sources, whose files are that much newer and have these rights."""
    sources = folder / "sources"
    sources.mkdir(parents=True)
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, sources / name)
    for path in sources.rglob("*.*"):
        if path.is_file():
            path.chmod(rights)
            os.utime(path, (path.stat().st_mtime + later,) * 2)
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps")
    run(*pip, "--wheel-dir", folder, sources, folder=folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("wheel"))


def test_it_has_the_same_bytes_wherever_it_is_built(wheel: Path, tmp_path: Path) -> None:
    other = built(tmp_path / "elsewhere", later=86_400, rights=0o600)
    assert other.name == wheel.name
    assert other.read_bytes() == wheel.read_bytes()


def test_it_holds_the_package_as_a_whole_and_nothing_else(wheel: Path) -> None:
    files = (path for path in (ROOT / "widthfold_onnx").rglob("*") if path.is_file())
    package = {str(path.relative_to(ROOT)) for path in files if path.parent.name != "__pycache__"}
    assert "widthfold_onnx/py.typed" in package
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == package


def test_it_works_in_a_bare_environment(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "bare"
    run(sys.executable, "-m", "venv", environment, folder=tmp_path)
    tools = environment / ("Scripts" if os.name == "nt" else "bin")
    run(tools / "python", "-m", "pip", "install", "--quiet", f"{wheel}[cpu]", folder=tmp_path)
    shown = run(tools / "widthfold", "--version", folder=tmp_path)
    assert shown == f"widthfold, version {PROJECT['version']}\n"

    model = ROOT / "models" / "signal_1d.onnx"
    fold = ("optimize", model, "out.onnx", "--factor", "8", "--seeds", "1", "--report", "r.json")
    shown = run(tools / "widthfold", *fold, folder=tmp_path)
    assert "1 of 1 Conv nodes folded; wrote out.onnx" in shown
    assert "verdict: pass" in shown
    assert (tmp_path / "out.onnx").stat().st_size > model.stat().st_size
