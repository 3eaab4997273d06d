"""Segments of channels that Concats cut, Splits part and sums tie together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from scipy.cluster.hierarchy import DisjointSet

from widthfold_onnx.rules.padding.channels import (
    Segment,
    Segments,
    channel_range,
    count_of,
    current_segments,
    cut,
    merge,
)

Channel = tuple[int, int]
"""The number of the segment in which a channel was made, and its index there."""


@dataclass
class Channels:
    """Tensors as segments, and beside them each channel by itself; ties are a disjoint set."""

    tensors: list[tuple[Segments, list[Channel]]] = field(default_factory=list)
    ties: DisjointSet = field(default_factory=DisjointSet)
    count: int = 0

    def make(self, channel_count: int) -> None:
        channels = [(self.count, i) for i in range(channel_count)]
        for channel in channels:
            self.ties.add(channel)
        self.tensors.append(((Segment(channel_count, {self.count: None}),), channels))
        self.count += 1

    def join(self, numbers: Sequence[int]) -> None:
        parts = [self.tensors[number] for number in numbers]
        segments = tuple(segment for part, _ in parts for segment in part)
        self.tensors.append((segments, [channel for _, part in parts for channel in part]))

    def part(self, number: int, begin: int, end: int) -> None:
        segments, channels = self.tensors[number]
        self.tensors.append((channel_range(segments, begin, end), channels[begin:end]))

    def tie(self, first: int, second: int) -> None:
        merge(self.tensors[first][0], self.tensors[second][0])
        for pair in zip(self.tensors[first][1], self.tensors[second][1], strict=True):
            self.ties.merge(*pair)

    def check(self) -> None:
        """Channels share a place of a segment if they are tied, and then share their makers."""
        places: dict[Channel, tuple[int, int]] = {}
        for segments, channels in self.tensors:
            assert count_of(segments) == len(channels)
            rest = iter(channels)
            for segment in current_segments(segments):
                for offset in range(segment.count):
                    channel = next(rest)
                    place = id(segment), offset
                    assert places.setdefault(self.ties[channel], place) == place
                    tied = self.ties.subset(channel)
                    assert set(segment.makers) == {maker for maker, _ in tied}
        assert len(set(places.values())) == len(places)


@pytest.mark.parametrize("seed", range(60))
def test_segments_agree_with_channels_one_by_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    channels = Channels()
    for _ in range(3):
        channels.make(int(rng.integers(1, 8)))
    for _ in range(12):
        numbers = rng.permutation(len(channels.tensors)).tolist()
        length = len(channels.tensors[numbers[0]][1])
        alike = [n for n in numbers[1:] if len(channels.tensors[n][1]) == length]
        kind = rng.integers(3)
        if kind == 0 and length < 16:
            channels.join(numbers[:2])
        elif kind == 1:
            begin, end = sorted(rng.choice(length + 1, 2, replace=False).tolist())
            channels.part(numbers[0], begin, end)
        elif alike:
            channels.tie(numbers[0], alike[0])
        channels.check()


def test_parts_and_merged_segments_keep_what_stops_them() -> None:
    first, second = Segment(6, {"a": None}, {"output": 1}), Segment(4, {"b": None}, {"body": 2})
    cut([first], [2])
    assert [(part.count, part.stops) for part in current_segments([first])] == [
        (2, {"output": 1}),
        (4, {"output": 1}),
    ]
    merge(channel_range((first,), 2, 6), (second,))
    untied, tied = current_segments([first])
    assert untied.stops == {"output": 1}
    assert (dict.fromkeys("ab"), {"output": 1, "body": 2}) == (tied.makers, tied.stops)
    assert current_segments([second]) == (tied,)
