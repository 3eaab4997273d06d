"""The script that draws the pictures of README.md."""

from __future__ import annotations

import importlib
import itertools
import re
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from tests.shared import ROOT

SVG = "{http://www.w3.org/2000/svg}"
IMAGES = ROOT / "docs" / "images"


@pytest.fixture
def pictures(scripts: Path) -> ModuleType:
    return importlib.import_module("pictures")


def words(svg: str) -> list[str]:
    """The lines of text of a picture, which is well-formed."""
    return ["".join(text.itertext()) for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


@pytest.mark.parametrize("name", ["fold", "strided", "depthwise", "transposed", "matmul", "gains"])
def test_two_runs_draw_the_same_bytes(pictures: ModuleType, name: str) -> None:
    svg = pictures.PICTURES[name]()
    assert svg == pictures.PICTURES[name]()
    light, dark = svg.partition("@media (prefers-color-scheme: dark)")[::2]
    for colour in set(re.findall(r"var\((--\w+)\)", svg)):
        assert f"{colour}: #" in light
        assert f"{colour}: #" in dark


def test_the_picture_shows_a_fold_by_four_as_a_band(pictures: ModuleType) -> None:
    example = pictures.FOLDS["fold"]
    _, record = pictures.folded(example)
    (axis,) = record.axes
    assert (record.channels, axis.in_tile) == ("1 -> 4, folded 4 -> 16", 4)
    drawn: dict[float, list[float]] = {}
    for text in ElementTree.fromstring(pictures.kernel(axis, "kernel")).iter("text"):
        if "#101010" in text.attrib["style"]:
            drawn.setdefault(float(text.attrib["y"]), []).append(float(text.attrib["x"]))
    rows = [sorted(drawn[y]) for y in sorted(drawn)]
    step = rows[0][1] - rows[0][0]
    assert [len(row) for row in rows] == [3, 3, 3, 3]
    for above, below in itertools.pairwise(rows):
        assert below == pytest.approx([x + step for x in above])
    assert "After: Conv 4 -> 16, the same taps, elsewhere zeros:" in words(
        pictures.fold_picture(example)
    )


@pytest.mark.parametrize(
    ("name", "before", "packs", "after", "unpacks"),
    [
        (
            "strided",
            "Conv 1 -> 1 at stride 2, a kernel of 4 taps",
            "Every 2 neighbouring positions become channels:",
            "Conv 2 -> 1 at stride 1, the same taps",
            "The output is returned as it is.",
        ),
        (
            "depthwise",
            "Conv 2 -> 2 in 2 groups, a kernel of 3 taps",
            "Every 4 neighbouring positions become channels:",
            "Conv 8 -> 8, the same taps",
            "Every 4 channels become neighbouring positions of the output.",
        ),
        (
            "transposed",
            "ConvTranspose 1 -> 1 at stride 2, a mirrored kernel of 4 taps",
            "The input is read as it is.",
            "Conv 1 -> 2 at stride 1, the same taps",
            "Every 2 channels become neighbouring positions of the output.",
        ),
        (
            "matmul",
            "MatMul 3 -> 3, its weight",
            "Every 4 neighbouring rows become channels:",
            "MatMul 12 -> 12, the weight on the diagonal",
            "Every 4 channels become neighbouring rows of the output.",
        ),
    ],
)
def test_each_picture_says_what_becomes_of_its_layer(
    pictures: ModuleType, name: str, before: str, packs: str, after: str, unpacks: str
) -> None:
    message = [f"Before: {before}:", packs, f"After: {after}, elsewhere zeros:", unpacks]
    assert [
        line for line in words((IMAGES / f"{name}.svg").read_text()) if line in message
    ] == message
    assert [line for line in words(pictures.PICTURES[name]()) if line in message] == message


def test_the_chart_of_the_readme_is_that_of_the_published_models(pictures: ModuleType) -> None:
    suite = pictures.read(ROOT / "benchmarks" / "published.json").suite()
    assert suite.rows
    for shown in (pictures.gains_picture(suite), (IMAGES / "gains.svg").read_text()):
        assert {f"{row.cells['auto'].ratio:.2f}x" for row in suite.rows} <= set(words(shown))


def test_a_session_shows_what_a_command_prints_and_loads_nothing(pictures: ModuleType) -> None:
    command = "widthfold inspect models/paper_conv.onnx"
    svg = pictures.session_picture([command])
    printed = " ".join(words(svg)).replace("\xa0", " ")
    assert f"$ {command}" in printed
    assert "1 Conv" in printed
    assert "@font-face" not in svg


def test_a_command_that_fails_is_no_picture(pictures: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"widthfold inspect none.onnx: exit code 2: .*none.onnx"):
        pictures.terminal("widthfold inspect none.onnx", tmp_path)
