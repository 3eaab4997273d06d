"""Tables of a report: the columns that a detail shows, and no empty ones."""

from __future__ import annotations

import pytest

from widthfold_onnx.reports.description import NUMBER, Column, Line, tabulated

COLUMNS = (
    Column("name", lambda row: row["name"]),
    Column("gain", lambda row: row.get("gain", "")),
    Column("why", lambda row: row.get("why", ""), is_detail=True, sentences=True),
)


def test_columns_without_a_cell_are_left_out() -> None:
    (table,) = tabulated("layers", COLUMNS, [{"name": "a"}, {"name": "b", "gain": "1.50x"}])
    assert (table.title, table.columns) == ("layers", ["name", "gain"])
    assert table.rows == [["a", ""], ["b", "1.50x"]]
    assert not table.sentences


def test_a_detail_shows_more_columns() -> None:
    rows = [{"name": "a", "why": "it is wide"}]
    (brief,) = tabulated("layers", COLUMNS, rows)
    (full,) = tabulated("layers", COLUMNS, rows, is_full=True)
    assert brief.columns == ["name"]
    assert full.columns == ["name", "why"]
    assert full.sentences


@pytest.mark.parametrize("rows", [[], [{"name": ""}], [{"name": "", "why": "hidden"}]])
def test_a_table_without_a_visible_cell_is_none(rows: list[dict[str, str]]) -> None:
    assert tabulated("layers", COLUMNS, rows) == []


def test_a_line_has_a_label_or_none() -> None:
    assert str(Line("proof", "equal")) == "proof: equal"
    assert str(Line("", "4 layers")) == "4 layers"


@pytest.mark.parametrize(
    ("text", "is_number"),
    [
        *((text, True) for text in ("", "-", "7", "0.25", "1e-07", "1.50x", "12%", "1.5 MiB")),
        ("1.26x [1.20, 1.32]", True),
        *((text, False) for text in ("Conv", "1.50x predicted", "3 layers", "1x3x7")),
    ],
)
def test_numbers_are_recognized_with_their_units(text: str, is_number: bool) -> None:
    assert bool(NUMBER.fullmatch(text)) == is_number
