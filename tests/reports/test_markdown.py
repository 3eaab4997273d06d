"""Reports in Markdown: the verdict first, whole tables, no live sign in a name."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from tests.folding import inspect
from tests.reports.sample import HOSTILE, failing, hostile, output, passing
from tests.small_models import MODELS
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.reports.markdown import LIMIT, code, render

ENTITY = re.compile(r"&#\d+;")


def test_the_verdict_is_the_first_line() -> None:
    mark, blank, first, *_ = render(passing()).splitlines()
    assert (mark, blank) == ("<!-- widthfold.verify/8 -->", "")
    assert "**pass**: the rewritten model computes what the original computes" in first
    assert "**fail**" in render(failing()).splitlines()[2]


def test_tables_have_as_many_cells_as_columns() -> None:
    for report in (passing(), failing(), hostile()):
        tables = re.findall(r"(?:^\|.*\n)+", render(report), re.MULTILINE)
        assert len(tables) == 3
        for table in tables:
            assert len({line.count("|") for line in table.splitlines()}) == 1


def test_speed_memory_and_size_are_there() -> None:
    text = render(passing())
    for part in ("**time:** <code>faster", "p99 ms", "KiB"):
        assert part in text
    assert code("original / rewritten = 1.702 [1.691, 1.713], A/A control 1.021")[6:-7] in text


def test_nodes_are_compared_with_the_limits_of_the_machine_where_these_are_known() -> None:
    report = passing()
    text = render(report)
    assert "| slowest nodes | model | op | us | of limit |" in text
    assert "| <code>original</code> | <code>Conv</code> | 256 | 1% |" in text
    assert "**limits&#44; per second:** <code>73&#46;4 G bytes of a copy of 256 KiB" in text
    assert code("150 G operations on float")[6:-7] in text
    assert report.timing is not None
    sides = {
        name: replace(side, nodes=[replace(node, reached=None) for node in side.nodes])
        for name, side in (
            ("original", report.timing.original),
            ("rewritten", report.timing.rewritten),
        )
    }
    elsewhere = render(replace(report, timing=replace(report.timing, limits={}, **sides)))
    assert "| slowest nodes | model | op | us |\n" in elsewhere
    assert "limit" not in elsewhere


def test_names_hold_no_sign_that_means_anything() -> None:
    for name in (HOSTILE, "*a* _b_ [c](d) #1 ~x~ \\ {e} www.f.g http://h :i:", "a|b"):
        inner = code(name).removeprefix("<code>").removesuffix("</code>")
        rest = ENTITY.sub("", inner)
        assert re.fullmatch(r"[\w /-]*", rest.replace("…", "")), rest
        assert "_" not in rest
    assert code("") == ""


def test_long_tables_fold_and_huge_ones_are_cut() -> None:
    report = passing()
    many = replace(report, outputs=[output(f"out_{i}", "all") for i in range(30)])
    text = render(many)
    assert "<details><summary>30 outputs</summary>\n\n| output" in text
    assert "are not shown" not in text


def test_no_line_of_a_cell_is_cut_for_the_others() -> None:
    report = inspect(MODELS / "pitch_cnn.onnx", FoldOptions(factor=8))
    text = render(report)
    for site in report.sites:
        for choice in site.choices:
            assert code(f"{choice.axis} by {choice.factor}: {choice.channels}")[:-7] in text


@pytest.mark.parametrize("name", ["conv", HOSTILE, "名" * 300, "|" * 300])
def test_it_always_fits_a_comment(name: str) -> None:
    count = 1000 if len(name) < 300 else 250
    huge = replace(
        hostile(),
        original=name,
        outputs=[output(f"{name}{i}", "all", 1.0, passed=False) for i in range(count)],
        reasons=[name * 9] * count,
    )
    text = render(huge)
    assert 1000 < len(text.encode()) < LIMIT
    cut = set(re.findall(r"\d+ more ([a-z ]*?) ?are not shown", text))
    assert cut >= {"outputs", ""}
