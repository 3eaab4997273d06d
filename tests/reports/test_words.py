"""Numbers, names and lists as reports show them."""

from __future__ import annotations

import pytest

from widthfold_onnx.reports import words
from widthfold_onnx.results import Gain, SiteReport


def site(op: str) -> SiteReport:
    return SiteReport(node="n", graph="", op=op, status="kept", code="no-gain", reason="")


def test_numbers() -> None:
    assert [words.figure(None), words.figure(0.0), words.figure(12345.0, 3)] == [
        "-",
        "0",
        "1.23e+04",
    ]
    assert list(map(words.size_text, (0, (1 << 20) - 1, 1 << 20, 3 << 19))) == [
        *("0.0 KiB", "1024.0 KiB"),
        *("1.0 MiB", "1.5 MiB"),
    ]
    assert [words.counted(0, "layer"), words.counted(1, "pass"), words.counted(2, "pass")] == [
        *("0 layers", "1 pass", "2 passes")
    ]


def test_a_predicted_gain_has_no_interval() -> None:
    gain = Gain(ratio=1.257, low=1.204, high=1.316, pairs=7)
    assert words.gain_text(gain) == "1.26x [1.20, 1.32]"
    assert words.gain_text(Gain(ratio=2.0, low=2.0, high=2.0, pairs=0, predicted=True)) == (
        "2.00x predicted"
    )


def test_empty_texts_are_no_clauses() -> None:
    assert words.clauses("", "first", "", "second") == "first; second"
    assert words.clauses("") == ""


def test_shapes_name_a_scalar_and_count_what_they_leave_out() -> None:
    inputs = {"x": [1, 3, 7], "rate": [], "\x1b": [2]}
    assert words.shapes_text(inputs) == "x 1x3x7, rate scalar, \\x1b 2"
    assert words.shapes_text(inputs, 1) == "x 1x3x7 and 2 more"
    assert words.shapes_text(inputs, 3) == words.shapes_text(inputs)


@pytest.mark.parametrize(
    ("operators", "text"),
    [
        ([], "linear"),
        (["Gemm", "Gemm"], "Gemm"),
        (["MatMul", "Conv", "Gemm", "Conv"], "Conv, Gemm and MatMul"),
    ],
)
def test_kinds_are_sorted_and_named_once(operators: list[str], text: str) -> None:
    assert words.kinds(list(map(site, operators))) == text


@pytest.mark.parametrize("limit", range(4, 20))
def test_a_long_name_keeps_both_ends_and_its_limit(limit: int) -> None:
    name = "/model/encoder/conv_7"
    text = words.short_text(name, limit)
    assert len(text) <= limit
    head, tail = text.split("…")
    assert name.startswith(head)
    assert name.endswith(tail)
    assert abs(len(head) - len(tail)) <= 2
    assert words.short_text(name[:limit], limit) == name[:limit]


NAMES = ["", "a", "encoder/layer/Conv", *(f"m;{'n' * 30}{i}{'n' * 40}/Conv" for i in range(12))]


@pytest.mark.parametrize("limit", [20, 36, 48])
def test_different_names_of_a_table_stay_different(limit: int) -> None:
    shown = words.short_names([*NAMES, *NAMES], limit)
    assert len(set(shown)) == len(NAMES)
    assert shown[: len(NAMES)] == shown[len(NAMES) :]
    for name, short in zip(NAMES, shown, strict=False):
        assert len(short) <= limit
        assert short == name or (short.startswith("m;nnn") and short.endswith("Conv"))


def test_folders_that_all_names_share_are_left_out_where_a_name_is_too_long() -> None:
    names = [f"model/encoder/{layer}/attention/Conv" for layer in ("first", "second_of_them")]
    assert words.short_names(names, 48) == names
    assert words.short_names(names, 33) == [
        "…/first/attention/Conv",
        "…/second_of_them/attention/Conv",
    ]
    assert words.short_names(["model/a/Conv"] * 2, 11) == ["…/Conv"] * 2


def test_names_beyond_four_are_counted() -> None:
    names = ["a" * 9, "b", "c", "d", "e", "f"]
    assert words.list_text(names[:4], 5) == "a…aa, b, c, d"
    assert words.list_text(names, 20) == "aaaaaaaaa, b, c, d and 2 more"
