"""The levels at which the layers of a model race, and what an interrupt leaves."""

from __future__ import annotations

from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.tuning.measurement import Measurement
from widthfold_onnx.tuning.search.race import only_level


def test_the_level_is_left_open_where_there_are_several_sizes() -> None:
    slower = Measurement("ok", 0.8, 0.79, 0.81, 1.0, 9, "", "2026-11-28T12:00:00+00:00")
    small, large = {"x": (1, 3)}, {"x": (2, 3)}
    for sizes, level in (((small,), Level.ALL), ((small, large), None)):
        assert only_level(slower, sizes) == level
