"""A world in which every time was said beforehand: nothing runs but what says how fast it is."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import onnx
import pytest

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.rewrite.record import FOLD_KEY
from widthfold_onnx.runtime.child import Child
from widthfold_onnx.runtime.inputs.feeds import Distribution
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.tuning import bench as bench_module
from widthfold_onnx.tuning import store as store_module
from widthfold_onnx.tuning.measurement import AS_IS, CandidateResult, Measurement
from widthfold_onnx.tuning.search import session as session_module
from widthfold_onnx.tuning.search import trials
from widthfold_onnx.tuning.search.timers import time_in_process, time_in_turn, time_levels
from widthfold_onnx.tuning.successive_halving import Start, race

WHOLE = 10.0
"""Seconds that every model takes as it is."""

CONNECTED = store_module._connected

Alone = Callable[[dict[str, Any], dict[str, Any]], tuple[float, float] | str]
"""Ratio of a form and the low end of it, or why it is lost, by layer and form."""


def doubled(layer: dict[str, Any], form: dict[str, Any]) -> tuple[float, float]:
    """Folds of the width by 2, on both sides, run at twice the speed, all else at half.

    No two forms of a layer are equally fast: which of them a solver takes differs by its release.
    """
    kind = (form["axis"], form["factor"], form["kind"])
    ratio = (2.0 if form["tile_major"] else 1.9) if kind == ("width", 2, "interleaved") else 0.5
    return ratio, ratio * 0.9


class World:
    """A stand-in for `isolated`.

    Args:
        alone: what becomes of a layer's form.
        saved: seconds that a node saves in its place if it is folded; with NaN no model runs.
        steady: the same on smooth inputs, where it differs.
        noise: half width of every interval of whole models, and their control.
        levels: time of the original at level ALL / at EXTENDED.
    """

    def __init__(
        self,
        alone: Alone,
        saved: Mapping[str, float],
        noise: float = 0.005,
        levels: float = 0.5,
        steady: Mapping[str, float] | None = None,
    ) -> None:
        self.alone = alone
        self.saved = saved
        self.steady = saved if steady is None else steady
        self.noise = noise
        self.level_ratio = levels
        self.advice = ""
        self.raced: list[str] = []
        self.budgets: list[float] = []
        self.levels: list[tuple[object, Level | None]] = []
        self.children: list[tuple[object, Child | None]] = []
        self.at: list[Level] = []
        self.compared: list[tuple[frozenset[str], frozenset[str]]] = []

    def isolated(self, function, *args, on_message=None, child=None, **limits):
        self.children.append((function, child))
        if function is race:
            return self._race(*args, on_message)
        if function is trials.send_each:
            for results in self._trial(*args):
                on_message(results)
            return None
        return function(*args)

    def _race(self, workloads, options, seconds, send) -> None:
        as_it_is = Measurement.of_ratio(1.0, 1.0, 1.0, 1.0, 4)
        for workload in workloads:
            if not workload.forms:  # the layer as it is, before it races
                send(Start(workload.subject, AS_IS))
                send(CandidateResult(workload.subject, AS_IS, as_it_is))
                continue
            self.raced.append(workload.subject)
            self.at.append(options.setting.level)
            send(Start(workload.subject, AS_IS))
            send(CandidateResult(workload.subject, AS_IS, as_it_is))
            for key in (form.spec for form in workload.forms):
                fate = self.alone(json.loads(workload.subject), msgspec.to_builtins(key))
                if isinstance(fate, str):
                    send(CandidateResult(workload.subject, key, Measurement.lost(fate)))
                else:
                    ratio, low = fate
                    measured = Measurement.of_ratio(ratio, low, 2 * ratio - low, 1 / ratio, 40)
                    send(CandidateResult(workload.subject, key, measured))

    def _contest(
        self, base: Path, other: Path, options, shapes, kind=Distribution.NORMAL
    ) -> Measurement:
        saved = self.saved if kind is Distribution.NORMAL else self.steady
        sides = folded(base), folded(other)
        self.compared.append(sides)
        self.budgets.append(options.time_budget)
        before, after = (WHOLE - sum(saved[name] for name in side) for side in sides)
        if math.isnan(before + after):
            raise UnverifiedError("the child process died of SIGSEGV")
        return self._timed(before, after, "all", "all")

    def _trial(self, timer: partial, options, sizes) -> Iterator[list[Measurement | None]]:
        """Stand in for the functions that time whole models at sizes."""
        models, function, level = timer.args, timer.func, timer.keywords.get("level")
        if function is not time_levels:
            self.levels.append((function, level))
        if function is time_levels:
            yield [self._timed(WHOLE, WHOLE / self.level_ratio, "all", "extended")]
        elif function is time_in_turn:
            yield from self._turns(*models, options, sizes)
        else:
            for shapes in sizes:
                result = self._contest(*models, options, shapes)
                yield [result]
                if function is time_in_process and result.high < 1:
                    return

    def _turns(
        self, base: Path, others: Sequence[Path], kind: Distribution, options, sizes
    ) -> Iterator[list[Measurement | None]]:
        decided: set[Path] = set()
        for shapes in sizes:
            results: list[Measurement | None] = []
            for other in others:
                result = None
                if other not in decided:
                    ratio = self._contest(other, base, options, shapes, kind)
                    result = Measurement.of_ratio(ratio.ratio, ratio.low, ratio.high, 1.0, 50)
                    if result.high < 1:
                        decided.add(other)
                results.append(result)
            yield results

    def _timed(
        self, before: float, after: float, original_setting: str, setting: str
    ) -> Measurement:
        ratio = before / after
        low, high = ratio * (1 - self.noise), ratio * (1 + self.noise)
        return msgspec.structs.replace(
            Measurement.of_ratio(ratio, low, high, after, 50),
            control=self.noise,
            note=self.advice,
            original_setting=original_setting,
            setting=setting,
        )


def folded(model: Path) -> frozenset[str]:
    """Names of the Convs of a model that were folded."""
    return frozenset(
        node.name
        for node in onnx.load(model).graph.node
        if FOLD_KEY in {item.key for item in node.metadata_props}
    )


def enter(monkeypatch: pytest.MonkeyPatch, world: World) -> World:
    """Let the search measure in that world, into stores that wait for no disk.

    A search puts hundreds of measurements into its store, and a flush takes 10 ms.
    """

    def unflushed(place: str, path: Path | None) -> sqlite3.Connection:
        connection = CONNECTED(place, path)
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    for module in (session_module, bench_module, trials):
        monkeypatch.setattr(module, "isolated", world.isolated)
    monkeypatch.setattr(store_module, "_connected", unflushed)
    return world
