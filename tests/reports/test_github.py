"""Annotations of GitHub: errors at their file, ten at most."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.folding import optimize
from tests.reports.sample import HOSTILE, NOT_PROVABLE, failing, hostile, passing
from tests.shared import ROOT
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.reports.github import MAX_ANNOTATIONS, render

MODELS = ROOT / "models"


def read(text: str) -> list[tuple[str, dict[str, str], str]]:
    """Kind, properties and message of every command, as the runner reads them."""

    def plain(part: str) -> str:
        for sign, escape in (
            (":", "%3A"),
            (",", "%2C"),
            ("\r", "%0D"),
            ("\n", "%0A"),
            ("%", "%25"),
        ):
            part = part.replace(escape, sign)
        return part

    lines_of_page = []
    for line in text.splitlines():
        if not line.lstrip().startswith("::"):
            continue
        command, message = line.lstrip()[2:].split("::", 1)
        kind, _, rest = command.partition(" ")
        pairs = (pair.split("=", 1) for pair in rest.split(","))
        lines_of_page.append((kind, {k: plain(v) for k, v in pairs}, plain(message)))
    return lines_of_page


def test_nothing_to_say_is_one_line() -> None:
    text = render(passing(), Path("m.onnx"))
    assert text.startswith("widthfold: pass; 12 input sets")
    assert text.count("\n") == 1


def test_what_failed_is_an_error_at_the_file() -> None:
    first, second = read(render(failing(), Path("models/a,b.onnx")))
    assert {kind for kind, _, _ in (first, second)} == {"error"}
    assert first[1] == second[1] == {"file": "models/a,b.onnx", "title": "fail"}
    assert [first[2], second[2]] == failing().reasons


def test_hostile_names_stay_in_their_place() -> None:
    text = render(hostile(), Path(HOSTILE))
    shown = r"\x1b[2J<script>alert(1)</script>]]>|`$x^2$`@you\u202e--> ::error::\x0a::%0A,a:b\uffff"
    ((kind, properties, message),) = read(text)
    assert kind == "error"
    assert properties.keys() == {"file", "title"}
    assert properties["file"].startswith(shown)
    assert message.startswith(shown)


def test_ten_at_most_and_the_rest_is_counted() -> None:
    report = replace(failing(), reasons=[f"output o{i} differs" for i in range(30)])
    commands = read(render(report, Path("m.onnx")))
    assert len(commands) == MAX_ANNOTATIONS
    assert commands[-1][1]["title"] == "21 more"


def test_a_verdict_without_a_place_is_said_too() -> None:
    report = replace(passing(), verdict="unverified", reasons=["no runtime"])
    assert read(render(report, Path("m")))[0][2] == "no runtime"


def test_a_pass_without_a_proof_warns() -> None:
    report = replace(passing(), proof=NOT_PROVABLE, reasons=[NOT_PROVABLE.reason])
    ((kind, properties, message),) = read(render(report, Path("m")))
    assert (kind, properties["title"], message) == ("warning", "pass, but", NOT_PROVABLE.reason)


@pytest.mark.parametrize(("model", "count"), [("pitch_cnn.onnx", 4), ("ragged.onnx", 0)])
def test_a_plan_warns_of_what_can_be_folded(model: str, count: int) -> None:
    commands = read(render(optimize(MODELS / model, None, FoldOptions(factor=8)), Path(model)))
    assert [kind for kind, _, _ in commands] == ["warning"] * count
