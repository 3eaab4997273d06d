"""The levels at which the layers of a model race, and what an interrupt leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tuning.search.nets import ALL, found, status
from tests.tuning.workloads.tool import search_text
from tests.tuning.world import World, doubled, enter
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.tuning.measurement import Measurement
from widthfold_onnx.tuning.search.race import only_level


def test_the_level_is_left_open_where_there_are_several_sizes() -> None:
    slower = Measurement("ok", 0.8, 0.79, 0.81, 1.0, 9, "", "2026-11-28T12:00:00+00:00")
    small, large = {"x": (1, 3)}, {"x": (2, 3)}
    for sizes, level in (((small,), Level.ALL), ((small, large), None)):
        assert only_level(slower, sizes) == level


def test_an_interrupt_decides_with_what_is_known(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def alone(layer, form):
        if len(world.raced) > 2:  # the last of three layers
            raise KeyboardInterrupt
        return doubled(layer, form)

    world = enter(monkeypatch, World(alone, ALL))
    report = found(model)
    assert len(world.compared) == 1  # the plan against the original, and no other trial
    assert report.search.interrupted
    assert report.search.accepted
    assert sorted(status(report).values()) == ["folded", "folded", "no-gain"]
    assert report.search.pending >= 1  # the last layer, and the workloads between packed tensors
    assert f", ended early, {report.search.pending} layer" in search_text(report.search)
