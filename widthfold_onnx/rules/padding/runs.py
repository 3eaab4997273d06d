"""Tie channels of several tensors together that are padded together.

A line is the channels of a tensor as a sequence of runs. A run is cut where a Concat, a Split or a
group ends in it, and merged with a run that must have the same padding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate

from widthfold_onnx.model.graph.document import Node
from widthfold_onnx.refusal import Refusal


class Run:
    """Channels that are padded as one, wherever they occur.

    Args:
        count: how many they are.
        makers: the nodes that can write padding behind them.
        ends: the nodes that keep them from being padded, with the reasons.

    Attributes:
        parts: the runs that took its place.
    """

    def __init__(
        self,
        count: int,
        makers: Iterable[Node] = (),
        ends: Mapping[Node, Refusal] | None = None,
    ) -> None:
        self.count = count
        self.makers = dict.fromkeys(makers)
        self.ends = dict(ends or {})
        self.parts: tuple[Run, ...] = ()

    def part(self, count: int) -> Run:
        """Return a run of so many of its channels."""
        return Run(count, self.makers, self.ends)


Line = tuple[Run, ...]


def current(line: Iterable[Run]) -> Line:
    """Return the runs that replace the runs of a line."""
    result, waiting = [], list(line)[::-1]
    while waiting:
        run = waiting.pop()
        if run.parts:
            waiting += run.parts[::-1]
        else:
            result.append(run)
    return tuple(result)


def count_of(line: Iterable[Run]) -> int:
    """Return the number of channels of a line."""
    return sum(run.count for run in line)


def cut(line: Line, borders: Iterable[int]) -> None:
    """Cut the runs of a line so that they end at these numbers of channels."""
    for border in borders:
        start = 0
        for run in current(line):
            if start < border < start + run.count:
                run.parts = run.part(border - start), run.part(start + run.count - border)
                break
            start += run.count


def taken(line: Line, begin: int, end: int) -> Line:
    """Return the channels from `begin` up to `end` of a line."""
    cut(line, (begin, end))
    runs = current(line)
    ends = accumulate(run.count for run in runs)
    pairs = zip(runs, ends, strict=True)
    return tuple(run for run, last in pairs if begin < last <= end)


def merge(first: Line, second: Line) -> None:
    """Pad two lines of equally many channels alike."""
    while (borders := _borders(first)) != _borders(second):
        cut(first, _borders(second))
        cut(second, borders)
    for run, other in zip(current(first), current(second), strict=True):
        (run,), (other,) = current([run]), current([other])
        if run is not other:
            run.makers |= other.makers
            run.ends |= other.ends
            other.parts = (run,)


def _borders(line: Line) -> list[int]:
    return list(accumulate(run.count for run in current(line)))
