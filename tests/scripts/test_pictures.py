"""The script that draws the pictures of README.md."""

from __future__ import annotations

import importlib
import itertools
import re
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

SVG = "{http://www.w3.org/2000/svg}"
ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"


@pytest.fixture
def pictures(scripts: Path) -> ModuleType:
    return importlib.import_module("pictures")


def words(svg: str) -> list[str]:
    """The lines of text of a picture, which is well-formed."""
    return ["".join(text.itertext()) for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


@pytest.mark.parametrize("name", ["fold", "gains"])
def test_two_runs_draw_the_same_bytes(pictures: ModuleType, name: str) -> None:
    svg = pictures.PICTURES[name]()
    assert svg == pictures.PICTURES[name]()
    light, dark = svg.partition("@media (prefers-color-scheme: dark)")[::2]
    for colour in set(re.findall(r"var\((--\w+)\)", svg)):
        assert f"{colour}: #" in light
        assert f"{colour}: #" in dark


def test_the_picture_shows_a_fold_by_four_as_a_band(pictures: ModuleType) -> None:
    record = pictures.folded()
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
    assert "After: Conv 4 -> 16, the same taps as a band, elsewhere zeros:" in words(
        pictures.fold_picture()
    )


def test_the_chart_of_the_readme_is_that_of_the_suite(pictures: ModuleType) -> None:
    suite = pictures.read(ROOT / "benchmarks" / "suite.json")
    gains = [row.cells["auto"] for row in suite.rows if row.cells["auto"].ratio is not None]
    for shown in (pictures.gains_picture(suite), (IMAGES / "gains.svg").read_text()):
        assert {f"{cell.ratio:.2f}x" for cell in gains} <= set(words(shown))


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
