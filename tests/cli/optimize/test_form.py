"""`--form strides` on the command line: of `optimize`, `inspect` and `tune`."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from tests.cli.tool import QUICK, widthfold
from tests.small_models import conv, save

STFT = conv([1, 1, 77], (6, 1, 28), strides=[7])


@pytest.fixture
def stft(tmp_path: Path) -> Path:
    return save(STFT, tmp_path / "stft.onnx")


def test_optimize_folds_verifies_and_writes(stft: Path, tmp_path: Path) -> None:
    out, report = tmp_path / "out.onnx", tmp_path / "report.json"
    run = widthfold(
        "optimize", stft, out, "--form", "strides", "--seeds", 1, "--details", "--report", report
    )
    assert (run.code, run.err) == (0, "")
    assert "7 -> 6" in run.out
    assert [n.op_type for n in onnx.load(out).graph.node][-1] == "Conv"
    assert json.loads(report.read_bytes())["sites"][0]["form"] == "move space-to-depth"
    assert widthfold("verify", stft, out, *QUICK).code == 0


def test_inspect_shows_it_and_every_other_choice(tmp_path: Path) -> None:
    path, report = tmp_path / "stem.onnx", tmp_path / "report.json"
    save(conv([1, 3, 22, 26], (5, 3, 3, 3), strides=[2, 2], pads=[1] * 4), path)
    run = widthfold("inspect", path, "--form", "strides", "--report", report)
    assert (run.code, run.err) == (0, "")
    (site,) = json.loads(report.read_bytes())["sites"]
    assert {c["axis"]: c["channels"] for c in site["choices"]} == {
        "height": "6 -> 5",
        "width": "6 -> 5",
        "height+width": "12 -> 5",
    }
    plain = save(conv([1, 3, 22, 26], (5, 3, 3, 3)), tmp_path / "plain.onnx")
    run = widthfold("inspect", plain, "--form", "strides", "--report", report)
    assert run.code == 0
    (site,) = json.loads(report.read_bytes())["sites"]
    assert site["refusals"] == {"any axis": "no-strides: it has no stride to fold (--form strides)"}


@pytest.mark.parametrize("command", ["optimize", "inspect"])
@pytest.mark.parametrize("more", [("--factor", 8), ("--axis", "width")])
def test_it_goes_with_no_factor_and_no_axis(command: str, more: tuple, stft: Path) -> None:
    run = widthfold(command, stft, "--form", "strides", *more)
    assert run.code == 2
    assert "form strides folds every axis by its stride: give no factor, no axis" in run.line


def test_auto_as_a_factor_is_a_factor_that_was_not_given(stft: Path, tmp_path: Path) -> None:
    options = ("--form", "strides", "--factor", "auto", "--no-verify")
    assert widthfold("optimize", stft, tmp_path / "out.onnx", *options).code == 0
