"""A model is changed only if it gains at one size and is slower at none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.small_models import build, save
from tests.tuning.search.nets import ONE_AXIS, found
from tests.tuning.world import World, doubled, enter, folded
from widthfold_onnx.tuning.measurement import Measurement
from widthfold_onnx.tuning.search.trials import deciding_trial, gains_over_sizes

OPEN = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[N,1,4,32] x) => (float[N,1,4,32] y) <float[2,1,1,3] w1, float[1,2,1,3] w2>
{
    [first] a = Conv <pads = [0,1,0,1]> (x, w1)
    [second] y = Conv <pads = [0,1,0,1]> (a, w2)
}"""
SMALL, LARGE = {"x": (1, 1, 4, 32)}, {"x": (6, 1, 4, 32)}
FASTER, SLOWER, ALIKE = (
    Measurement.of_ratio(1.2, 1.1, 1.3, 1.0, 9),
    Measurement.of_ratio(0.8, 0.7, 0.9, 1.0, 9),
    Measurement.of_ratio(1, 1, 1, 1, 9),
)


class Sized(World):
    """A world in which folds save other times at each batch, and which notes every trial."""

    def __init__(self, by_batch: dict[int, dict[str, float]]) -> None:
        super().__init__(doubled, {})
        self.by_batch = by_batch
        self.batches: list[int] = []

    def _contest(self, base: Path, other: Path, options: Any, shapes: Any, *kind: Any) -> Any:
        self.batches.append(shapes["x"][0])
        self.saved = self.steady = self.by_batch[shapes["x"][0]]
        return super()._contest(base, other, options, shapes, *kind)


@pytest.mark.parametrize(
    ("at_six", "verdict", "count"),
    [(1.0, "faster", 2), (0.0, "no difference", 2), (-1.0, "slower", 0)],
)
def test_a_loss_at_one_size_forbids_the_change(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at_six: float,
    verdict: str,
    count: int,
) -> None:
    model = save(build(OPEN), tmp_path / "model.onnx")
    gains = {1: {"first": 1.0, "second": 1.0}, 6: {"first": at_six, "second": at_six}}
    enter(monkeypatch, Sized(gains))
    report = found(model, fold={**ONE_AXIS, "input_shapes": (SMALL, LARGE)})
    assert report.search is not None
    assert [row.verdict for row in report.search.sizes] == ["faster", verdict]
    assert [row.shapes["x"] for row in report.search.sizes] == [[1, 1, 4, 32], [6, 1, 4, 32]]
    assert (len(folded(model.with_name("out.onnx"))), report.search.accepted) == (count, count > 0)


def test_a_layer_that_loses_at_the_larger_size_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save(build(OPEN), tmp_path / "model.onnx")
    gains = {1: {"first": 1.0, "second": 1.0}, 6: {"first": -2.0, "second": 1.0}}
    world = enter(monkeypatch, Sized(gains))
    found(model, fold={**ONE_AXIS, "input_shapes": (SMALL, LARGE)})
    assert folded(model.with_name("out.onnx")) == {"second"}
    assert {level for _, level in world.levels} == {None}, "another level may be the fastest there"


def test_a_layer_that_loses_at_the_first_size_is_not_timed_at_the_larger_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save(build(OPEN), tmp_path / "model.onnx")
    lost = {"first": -1.0, "second": -1.0}
    world = Sized({1: lost, 6: {"first": 1.0, "second": 1.0}})
    enter(monkeypatch, world)
    found(model, fold={**ONE_AXIS, "input_shapes": (SMALL, LARGE)})
    assert world.batches.count(6) == 1 < world.batches.count(1), "the final trial is at all sizes"


def test_smaller_sizes_get_the_stored_final_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save(build(OPEN), tmp_path / "model.onnx")
    both = {"first": 1.0, "second": 1.0}
    world = Sized({1: both, 6: both})
    enter(monkeypatch, world)
    found(model, fold={**ONE_AXIS, "input_shapes": (LARGE, SMALL)})
    assert world.batches.count(1) == 1 < world.batches.count(6)


@pytest.mark.parametrize(
    ("trials", "deciding"),
    [
        ([FASTER, ALIKE], FASTER),
        ([ALIKE, FASTER], FASTER),
        ([FASTER, SLOWER], SLOWER),
        ([SLOWER, Measurement.lost("it does not run")], SLOWER),
        ([SLOWER, None], SLOWER),
        ([FASTER, None], None),
        ([FASTER], FASTER),
    ],
)
def test_the_first_size_decides_at_which_it_is_surely_slower(
    trials: list[Measurement | None], deciding: Measurement | None
) -> None:
    assert deciding_trial(trials) == deciding


def test_a_model_that_stops_at_one_size_is_not_taken() -> None:
    stopped = Measurement.lost("it does not run")
    assert deciding_trial([FASTER, stopped]) == stopped
    assert gains_over_sizes([FASTER, ALIKE])
    assert gains_over_sizes([None, None])
    assert not gains_over_sizes([FASTER, stopped])
    assert not gains_over_sizes([ALIKE, replace(FASTER, low=0.99)])
