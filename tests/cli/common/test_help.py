"""The text of `--help`, and the stream that it goes to."""

from __future__ import annotations

import re

import pytest

from tests.cli.tool import on_terminal, process
from widthfold_onnx.cli import main
from widthfold_onnx.cli.common import SECTIONS, Sectioned

COMMANDS = [name for name, command in main.commands.items() if isinstance(command, Sectioned)]


def listed(text: str) -> list[str]:
    """The options that the sections of a text list, in order."""
    _, _, sections = text.partition("Start with:")
    return re.findall(r"^  (?:-h, )?--([a-z-]+)", sections, re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_listed_once(name: str) -> None:
    names = [parameter.opts[-1] for parameter in main.commands[name].params]
    options = [option.removeprefix("--") for option in names if option.startswith("--")]
    listing = listed(process(name, "--help").out)
    assert sorted(listing) == sorted([*options, "help"])


def test_a_newcomer_finds_five_options_first() -> None:
    text = process("optimize", "--help").out
    first, *_ = re.split(r"\n\n(?=[A-Z][a-z ]+:\n)", text)[1:]
    assert first.startswith("Start with:")
    assert len(listed(first)) == 5
    assert set(COMMANDS) == {"apply", "inspect", "mlir", "optimize", "tune", "verify"}
    assert all(title in text for title in SECTIONS)


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("name", COMMANDS)
def test_it_fits_a_terminal(name: str, columns: int) -> None:
    run = on_terminal(name, "--help", columns=columns)
    assert run.code == 0
    assert max(map(len, run.out.splitlines())) <= min(columns, 100)
