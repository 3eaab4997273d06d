"""Converts figures of matplotlib to SVG for a page: no fixed colours, no clashing ids."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from xml.etree import ElementTree

import matplotlib.style
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, MUTED, RULE, BEFORE, AFTER = "#010101", "#020202", "#030303", "#040404", "#050505"
"""Stand-ins that become the page's colours, which differ between a light and a dark screen."""

_COLOURS = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    RULE: "var(--rule)",
    BEFORE: "var(--before)",
    AFTER: "var(--after)",
}
_STYLE = {
    "svg.fonttype": "none",  # text stays text: small, searchable, read aloud
    "svg.hashsalt": "widthfold",  # the same figure has the same ids in every run
    "text.parse_math": False,  # a "$" in a name of the model is a "$"
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "font.size": 8,
    "legend.frameon": False,
}
_FONT = re.compile(r"font: (bold )?([\d.]+px) [^;]*")
_FAMILY = re.compile(r"font-family: [^;]*; ")
_REFERENCE = re.compile(r"(url\(#|^#)([\w.-]+)")


def draw(
    key: str,
    title: str,
    size: tuple[float, float],
    paint: Callable[[Axes], None],
    margins: tuple[float, float, float, float] | None = None,
) -> Markup:
    """Make one picture.

    Args:
        key: unique among the pictures of a page; every id inside starts with it.
        title: text for readers who cannot see the picture.
        size: width and height in inches.
        paint: draws on the axes.
        margins: left, right, bottom and top in inches; None lets matplotlib measure, which takes
            it twice the time.
    """
    buffer = io.StringIO()
    with matplotlib.style.context(["default", _STYLE]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a glyph that matplotlib's font lacks, the viewer has
        figure = Figure(figsize=size, layout="constrained" if margins is None else None)
        paint(figure.subplots())
        if margins is not None:
            width, height = size
            at_left, at_right, below, above = margins
            figure.subplots_adjust(
                at_left / width, below / height, 1 - at_right / width, 1 - above / height
            )
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return _embedded(buffer.getvalue(), key, title)


def _embedded(text: str, key: str, title: str) -> Markup:
    root = ElementTree.fromstring(text)
    used = {
        name
        for element in root.iter()
        for value in element.attrib.values()
        for _, name in _REFERENCE.findall(value)
    }
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.rpartition("}")[2] in ("metadata", "style"):
                parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.attrib = {
            name.rpartition("}")[2]: _themed(_REFERENCE.sub(rf"\1{key}-\2", value))
            for name, value in element.attrib.items()
            if name != "id" or value in used
        }
        if "id" in element.attrib:
            element.attrib["id"] = f"{key}-{element.attrib['id']}"
    label = ElementTree.Element("title")
    label.text = title
    root.insert(0, label)
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": title}
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _themed(value: str) -> str:
    """Return an attribute with the colours and the font of the page."""
    for stand_in, colour in _COLOURS.items():
        value = value.replace(stand_in, colour)
    value = _FAMILY.sub("", value)  # newer versions of matplotlib do not write `font:`
    return _FONT.sub(lambda font: f"{_weight(font[1])}font-size: {font[2]}", value)


def _weight(bold: str | None) -> str:
    return "font-weight: bold; " if bold else ""
