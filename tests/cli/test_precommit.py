"""The pre-commit hook, as far as it runs without its service."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import yaml
from click.testing import CliRunner

from tests.shared import ROOT
from widthfold_onnx.cli.precommit import precommit_command

(HOOK,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())


def hook(*files: Path) -> tuple[int, str]:
    """Run the hook's entry in this process, as pre-commit would with these files."""
    arguments = [*HOOK["args"], *map(str, files)]
    result = CliRunner().invoke(precommit_command, arguments)
    return result.exit_code, result.output


def test_the_hook_lists_every_model_with_work(tmp_path: Path) -> None:
    models = ROOT / "models"
    files = [models / name for name in ("pitch_cnn.onnx", "ragged.onnx", "volume_3d.onnx")]
    code, out = hook(*files)
    assert code == 1
    assert "pitch_cnn.onnx': 4 nodes would be folded; " in out
    assert "volume_3d.onnx': 1 node would be folded\n" in out
    assert hook(models / "ragged.onnx") == (0, "")
    assert hook() == (0, "")


def test_a_pointer_of_git_lfs_is_named(tmp_path: Path) -> None:
    pointer = tmp_path / "model.onnx"
    pointer.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    code, out = hook(pointer)
    assert code == 3
    assert "git lfs pull" in out


def test_the_hook_is_for_onnx_files_and_can_be_run() -> None:
    assert (HOOK["id"], HOOK["language"], HOOK["files"]) == (
        "widthfold-check",
        "python",
        r"\.onnx$",
    )
    command = [sys.executable, *shlex.split(HOOK["entry"])[1:], "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "nothing is written" in done.stdout
