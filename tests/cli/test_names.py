"""Names of files with drive letters and backslashes, and names of files that are made."""

from __future__ import annotations

import contextlib
import runpy
import shlex
import sys
from collections.abc import Callable
from pathlib import Path, PureWindowsPath

import click
import onnx
import pytest

from tests.cli.tool import names, widthfold
from tests.small_models import build, save
from widthfold_onnx.cli import common, main
from widthfold_onnx.cli.optimize import _timing
from widthfold_onnx.cli.options import parse_assignment, parse_shape
from widthfold_onnx.model.atomic import place, temporary
from widthfold_onnx.options import FoldOptions, VerifyOptions

DRIVE = "C:\\models\\in.onnx"


def test_an_input_may_be_called_like_a_path() -> None:
    assert parse_shape(f"{DRIVE}:1,3") == (DRIVE, [(1, 3)])
    with pytest.raises(click.BadParameter):
        parse_shape(DRIVE)


def test_the_value_of_an_option_may_be_a_path() -> None:
    assert parse_assignment(f"cache={DRIVE}") == ("cache", DRIVE)


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
        file_names = [*names(tmp_path), *(t.name for t in tmp_path.iterdir())]
    assert len([name for name in file_names if name.startswith("o.onnx.")]) == 2
    assert any(name.startswith(".wf-") for name in file_names)
    assert not set('<>:"/\\|?*').intersection("".join(file_names))
    assert not [name for name in file_names if name.endswith((".", " "))]


def run_precommit() -> None:
    sys.modules.pop("widthfold_onnx.cli.precommit", None)
    runpy.run_module("widthfold_onnx.cli.precommit", run_name="__main__")


@pytest.mark.parametrize("run", [main, run_precommit])
def test_a_pattern_is_never_taken_for_names_of_files(
    run: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Windows click expands words that it reads from `sys.argv` itself."""
    words = ["inspect", "in.onnx", "--nodes", "*"]
    read: list[list[str] | None] = []

    def look(self: click.Command, args: list[str] | None = None, *_: object, **__: object) -> None:
        read.append(args)

    monkeypatch.setattr(sys, "argv", ["widthfold", *words])
    monkeypatch.setattr(click.Command, "main", look)
    with contextlib.suppress(SystemExit):
        run()
    assert read == [words]


def test_a_command_to_be_copied_needs_no_quotes_that_a_shell_of_windows_lacks() -> None:
    paths = (PureWindowsPath("models\\in.onnx"), PureWindowsPath("C:\\out.onnx"))
    command = _timing(*paths, FoldOptions(), VerifyOptions())
    assert command == "widthfold verify models/in.onnx C:/out.onnx"


def test_a_command_to_be_copied_names_stored_inputs() -> None:
    """The model was folded at their sizes; at other sizes it may not run."""
    paths = (PureWindowsPath("in.onnx"), PureWindowsPath("out.onnx"))
    entries = {"session.disable_prepacking": "1"}
    command = _timing(*paths, FoldOptions(), VerifyOptions(session_options=entries))
    assert command.endswith(" out.onnx --session-option session.disable_prepacking=1")
    command = _timing(*paths, FoldOptions(), VerifyOptions(inputs=("set_0", "b c.npz")))
    assert command.startswith("widthfold verify in.onnx out.onnx --inputs set_0 --inputs ")
    assert shlex.split(command)[-1] == "b c.npz"


def test_names_that_windows_takes_for_one_are_one_place() -> None:
    class WindowsPath(PureWindowsPath):
        def resolve(self) -> WindowsPath:
            return self

    first, second = (WindowsPath(name) for name in ("C:\\a\\OUT.onnx", "c:\\A\\out.onnx"))
    assert place(first) == place(second) != place(WindowsPath("C:\\out.onnx"))
