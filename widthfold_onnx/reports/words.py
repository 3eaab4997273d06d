"""Format numbers and names for all reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile

from widthfold_onnx.results import Gain, InspectSite, SiteReport
from widthfold_onnx.text import printable

_NAMES = 4
"""Most names of a list that are shown."""


def figure(value: float | None, digits: int = 2) -> str:
    """Format a number with so many significant digits; "-" for None."""
    return "-" if value is None else f"{value:.{digits}g}"


def size_text(count: int) -> str:
    """Format a number of bytes."""
    return f"{count / 1024:.1f} KiB" if count < 1 << 20 else f"{count / (1 << 20):.1f} MiB"


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: "1 layer", "2 layers", "2 processes"."""
    plural = "es" if noun.endswith("s") else "s"
    return f"{count} {noun}{'' if count == 1 else plural}"


def clauses(*texts: str) -> str:
    """Join the texts that are not empty with semicolons."""
    return "; ".join(filter(None, texts))


def gain_text(value: Gain) -> str:
    """Format a speed-up with its interval; a predicted speed-up has none."""
    if value.predicted:
        return f"{value.ratio:.2f}x predicted"
    return f"{value.ratio:.2f}x [{value.low:.2f}, {value.high:.2f}]"


def shapes_text(inputs: Mapping[str, Sequence[int]], limit: int | None = None) -> str:
    """Format shapes by the names of inputs: "x 1x3x64x64"; a scalar has no extents.

    Args:
        inputs: shape of each input.
        limit: most inputs to name; None names all.
    """
    texts = [f"{printable(n)} {'x'.join(map(str, d)) or 'scalar'}" for n, d in inputs.items()]
    suffix = f" and {len(texts) - limit} more" if limit is not None and len(texts) > limit else ""
    return ", ".join(texts[:limit]) + suffix


def kinds(sites: Sequence[SiteReport | InspectSite]) -> str:
    """List the operators of sites: "Conv and Gemm"; "linear" if there is no site."""
    *other_operators, last = sorted({site.op for site in sites}) or ["linear"]
    return f"{', '.join(other_operators)} and {last}" if other_operators else last


def short_text(name: str, limit: int) -> str:
    """Escape a name and shorten it in the middle, as long names of exporters start alike."""
    text = printable(name, 10_000)
    if len(text) <= limit:
        return text
    return f"{text[: limit // 2 - 1]}…{text[-(limit // 2) :]}"


def short_names(names: Sequence[str], limit: int) -> list[str]:
    """Shorten the names of a table in the middle, so that different names stay different.

    First, leading folders that all of them share are left out. Names that would still look alike
    also keep the part where they differ.

    >>> short_names(["encoder/layer_1/attention/Conv", "encoder/layer_2/attention/Conv"], 24)
    ['…/layer_1/attention/Conv', '…/layer_2/attention/Conv']
    >>> short_names(["conv_with_1_of_these_names", "conv_with_2_of_these_names"], 16)
    ['conv…1_of…ames', 'conv…2_of…ames']
    """
    texts = [printable(name, 10_000) for name in names]
    if max(map(len, texts), default=0) > limit:
        texts = _without_shared_folders(texts)
    shown = [short_text(text, limit) for text in texts]
    alike: dict[str, set[str]] = {}
    for text, short in zip(texts, shown, strict=True):
        alike.setdefault(short, set()).add(text)
    return [
        short if len(alike[short]) == 1 else _around(text, _shared_start([*alike[short]]), limit)
        for text, short in zip(texts, shown, strict=True)
    ]


def _without_shared_folders(names: Sequence[str]) -> list[str]:
    """Return names without the leading folders that all share; the last part always stays."""
    paths = [name.split("/") for name in names]
    shared = _shared_start([path[:-1] for path in paths])
    return ["/".join(["…", *path[shared:]]) for path in paths] if shared else [*names]


def _shared_start(sequences: Sequence[Sequence[str]]) -> int:
    """Return the length of the common prefix, in characters of texts or in folders of paths."""
    columns = zip(*sequences, strict=False)
    return len(list(takewhile(lambda items: len(set(items)) == 1, columns)))


def _around(text: str, start: int, limit: int) -> str:
    """Shorten a text to three parts: its beginning, the part from `start` on, and its end."""
    part = (limit - 2) // 3
    return f"{text[:part]}…{text[start : start + part]}…{text[len(text) - part :]}"


def list_text(names: Sequence[str], limit: int) -> str:
    """Join the first names, each in at most `limit` characters, and count the others."""
    text = ", ".join(short_text(name, limit) for name in names[:_NAMES])
    hidden_count = len(names) - _NAMES
    return f"{text} and {hidden_count} more" if hidden_count > 0 else text
