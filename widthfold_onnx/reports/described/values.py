"""Describes the values of inputs that choose between parts of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from widthfold_onnx.reports.description import Line
from widthfold_onnx.text import valued


def assumed(cases: Sequence[Mapping[str, Sequence[float]]]) -> list[Line]:
    """Return the line on combinations of values; none if no input has one."""
    texts = [", ".join(valued(n, v) for n, v in case.items()) for case in cases]
    if not any(texts):
        return []
    others = "; ".join(texts[1:])
    also = f"; compared with {others}, too; --value fixes one" if others else ""
    return [Line("values", f"{texts[0]}{also}")]
