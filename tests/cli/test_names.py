"""Names of files with drive letters and backslashes, and names of files that are made."""

from __future__ import annotations

from pathlib import Path, PureWindowsPath

import click
import onnx
import pytest

from tests.cli.tool import build, names, save, widthfold
from widthfold_onnx.cli import common
from widthfold_onnx.cli.options import assignments, shape
from widthfold_onnx.model.atomic import temporary

DRIVE = "C:\\models\\in.onnx"


def test_an_input_may_be_called_like_a_path() -> None:
    assert shape(f"{DRIVE}:1,3") == (DRIVE, [(1, 3)])
    with pytest.raises(click.BadParameter):
        shape(DRIVE)


def test_the_value_of_an_option_may_be_a_path() -> None:
    assert assignments([f"cache={DRIVE}"], "--provider-option") == {"cache": DRIVE}


def test_no_report_names_a_folder_of_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    class WindowsPath(PureWindowsPath):
        def is_dir(self) -> bool:
            return True

    monkeypatch.setattr(common, "Path", WindowsPath)
    with click.Context(click.Command("widthfold"), obj=["verify", DRIVE, f"--report={DRIVE}"]):
        assert common.typed_command() == "widthfold verify in.onnx --report=in.onnx"


@pytest.mark.parametrize("name", [DRIVE, "folder\\in.onnx", "\\\\server\\share\\in.onnx"])
def test_a_name_of_windows_is_shown_as_it_is(name: str) -> None:
    run = widthfold("inspect", name)
    assert run.code == 2
    assert name in run.line


def test_every_name_that_is_made_is_one_on_windows(tmp_path: Path) -> None:
    model = onnx.load(save(build(), tmp_path / "m.onnx"))
    onnx.save(
        model, tmp_path / "m.onnx", save_as_external_data=True, location="w.data", size_threshold=0
    )
    assert widthfold("optimize", tmp_path / "m.onnx", tmp_path / "o.onnx", "--factor", 2).code == 0
    with temporary(tmp_path / "t.onnx"):
        made = [*names(tmp_path), *(t.name for t in tmp_path.iterdir())]
    assert len([name for name in made if name.startswith("o.onnx.")]) == 2
    assert any(name.startswith(".wf-") for name in made)
    assert not set('<>:"/\\|?*').intersection("".join(made))
    assert not [name for name in made if name.endswith((".", " "))]
