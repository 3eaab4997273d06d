"""Strings of a model that are shown on one line without control characters."""

import pytest

from widthfold_onnx.text import printable, quoted


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("conv/1 größe 名前", "conv/1 größe 名前"),
        ("\x1b[2J\x07", r"\x1b[2J\x07"),
        ("a\nb\r\t\x00", r"a\x0ab\x0d\x09\x00"),
        ("\x7f\x80\x9f\xa0", "\\x7f\\x80\\x9f\xa0"),
        ("x\u202ey\u2066\u2069\u200e\u200f", r"x\u202ey\u2066\u2069\u200e\u200f"),
        ("\u2028\u2029", r"\u2028\u2029"),
        ("\ufffe\uffff", r"\ufffe\uffff"),
        ("\ud800\udfff", r"\ud800\udfff"),
        (b"caf\xc3\xa9 \xff\x1b", r"café \xff\x1b"),
        ("", ""),
    ],
)
def test_shows_what_is_safe_and_escapes_the_rest(text, shown):
    assert printable(text) == shown


@pytest.mark.parametrize("limit", [1, 2, 5, 60, 200])
@pytest.mark.parametrize("text", ["a" * 1000, "\n" * 1000, "ab\ncd" * 50, b"\xff" * 1000])
def test_a_long_text_keeps_the_limit(text, limit):
    shown = printable(text, limit)
    assert len(shown) <= limit
    assert shown.endswith("…")


def test_no_escape_is_cut():
    assert printable("ab\ncd", 7) == r"ab\x0a…"
    assert printable("ab\ncd", 6) == "ab…"


def test_text_at_the_limit_is_whole():
    assert printable("abcd", 4) == "abcd"
    assert printable("abcde", 4) == "abc…"


def test_quoted_keeps_one_line():
    assert quoted("a\nb") == r"'a\x0ab'"
