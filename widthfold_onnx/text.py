"""Escape strings of a model, so that a terminal, a log or a report can show them safely."""

from __future__ import annotations

import re
from collections.abc import Sequence

_ELLIPSIS = "…"

# C0, DEL and C1, the Unicode line and paragraph separators, every bidi control (an override can
# make a line read as another one), lone surrogates, which no encoder can write, and the two
# characters that XML forbids beside those.
_UNSAFE = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
    r"\ufffe\uffff]"
)


def _visible(text: str) -> str:
    return _UNSAFE.sub(_escape, text)


def _escape(unsafe: re.Match[str]) -> str:
    code = ord(unsafe[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def printable(text: str | bytes, limit: int = 200) -> str:
    r"""Show a string of unknown origin on one line, without any control character.

    Args:
        text: the string; bytes are read as UTF-8, and invalid ones become ``\xff``.
        limit: most characters of the result, at least 1; a longer one ends in an ellipsis.

    Returns:
        At most `limit` characters; an escape is never cut in two.

    >>> printable("a\x1b[2J\nb")
    'a\\x1b[2J\\x0ab'
    >>> printable("abcdef", limit=4)
    'abc…'
    """
    if isinstance(text, bytes):
        # A character takes at most four bytes; the rest of a long string is never shown.
        text = text[: 4 * (limit + 1)].decode("utf-8", errors="backslashreplace")
    head = text[: limit + 1]
    visible_head = _visible(head)
    if len(visible_head) <= limit:
        return visible_head
    room = limit - len(_ELLIPSIS)
    pieces: list[str] = []
    for piece in map(_visible, head):
        room -= len(piece)
        if room < 0:
            break
        pieces.append(piece)
    return "".join(pieces) + _ELLIPSIS


def quoted(text: str | bytes, limit: int = 200) -> str:
    """Show a string of unknown origin between quotes, as `printable` does.

    Args:
        text: the string.
        limit: most characters between the quotes.
    """
    return f"'{printable(text, limit)}'"


def value_text(name: str, elements: Sequence[float]) -> str:
    """Show the value of an input by its elements.

    >>> value_text("sr", [16000.0]), value_text("limits", [0.1, 0.9])
    ('sr 16000', 'limits [0.1, 0.9]')
    """
    texts = [f"{element:.12g}" for element in elements]
    return f"{printable(name)} {texts[0] if len(texts) == 1 else '[' + ', '.join(texts) + ']'}"
