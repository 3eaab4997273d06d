"""List every form of a site, whatever its operator."""

from __future__ import annotations

from collections.abc import Iterator

from widthfold_onnx.options import FoldOptions
from widthfold_onnx.rules import forms, matmul
from widthfold_onnx.rules.base import LinearSite
from widthfold_onnx.rules.forms import Outcome


def candidates(site: LinearSite, options: FoldOptions, factor: int) -> Iterator[Outcome]:
    """Yield every form at a factor, legal or refused, each with the names of its axes.

    Args:
        site: the site.
        options: axis, layout and limits are used.
        factor: positions that become channels, F >= 2.
    """
    family = matmul if site.is_product else forms
    yield from family.candidates(site, options, factor)
