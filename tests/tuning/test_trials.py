"""Whole models are compared once, and never taken for one another."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path

import onnx
import pytest
from widthfold_onnx.tuning.search.choice import ORIGINAL, Choice

from tests.cli.tool import build, save
from tests.tuning.races import bench
from tests.tuning.workers import sleeping
from tests.tuning.world import WHOLE, World, doubled, enter
from widthfold_onnx.model.read.loader import load
from widthfold_onnx.options import Companion
from widthfold_onnx.rewrite.record import FOLD_KEY
from widthfold_onnx.runtime.paired_benchmark import ratios_to
from widthfold_onnx.tuning.search import trials
from widthfold_onnx.tuning.search.trials import Trials
from widthfold_onnx.tuning.store.store import Store
from widthfold_onnx.tuning.workload.layers import Layers

A = Choice(forms={"layer": "form"})
B = Choice(forms={"layer": "form", "other": "form"})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save(build(), tmp_path / "model.onnx")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return enter(monkeypatch, World(doubled, {"layer": 2.0, "other": 3.0}))


@pytest.fixture(autouse=True)
def built(monkeypatch: pytest.MonkeyPatch) -> list[Choice]:
    """The choices that were built, as models that say by the names of folded Convs which it is."""
    choices: list[Choice] = []

    def build_one(choice: Choice, *rest: object) -> tuple[onnx.ModelProto, set[str]]:
        choices.append(choice)
        proto = build()
        for name in choice.forms:
            node = proto.graph.node.add(op_type="Conv", name=name)
            node.metadata_props.add(key=FOLD_KEY)
        return proto, set()

    monkeypatch.setattr(trials, "built", build_one)
    return choices


class Builder:
    """Trials of a model of one layer."""

    def __init__(self, model: Path, store: Store, **changes: object) -> None:
        self.bench = bench(store)
        folder = model.parent / "trials"
        folder.mkdir(exist_ok=True)
        given = {
            "loaded": load(model),
            "layers": Layers(subjects={("", "a"): "layer"}),
            "bench": self.bench,
            "shapes": {"x": (1, 2, 6, 16)},
            "folder": folder,
        }
        self.trials = Trials(**{**given, **changes})


def test_the_ratio_is_that_of_the_first_to_the_second(model: Path, world: World) -> None:
    with Store(None) as store:
        builder = Builder(model, store)
        found = builder.trials.compare(A, B, 3.0)
        assert found.ratio == pytest.approx((WHOLE - 2) / (WHOLE - 5))
        assert found.seconds == pytest.approx(WHOLE - 5)
        assert (found.rounds, found.control, found.status) == (50, 0.005, "ok")
        assert found.low < found.ratio < found.high
        assert builder.trials.compare(B, A, 3.0).ratio == pytest.approx(1 / found.ratio)
        assert builder.trials.compare(ORIGINAL, A, 3.0).ratio == pytest.approx(WHOLE / (WHOLE - 2))
    assert world.compared == [({"layer"}, {*B.forms}), ({*B.forms}, {"layer"}), (set(), {"layer"})]


def test_the_original_is_compared_as_it_lies_there(
    model: Path, monkeypatch: pytest.MonkeyPatch, world: World
) -> None:
    seen: list[Path] = []

    def spy(function, base: Path, *args, **more):
        seen.append(base)
        return world.isolated(function, base, *args, **more)

    monkeypatch.setattr("widthfold_onnx.tuning.search.trials.isolated", spy)
    with Store(None) as store:
        Builder(model, store).trials.compare(ORIGINAL, A, 3.0)
    assert seen == [model]


def test_nothing_is_built_or_compared_twice(model: Path, world: World, built: list[Choice]) -> None:
    with Store(None) as store:
        builder = Builder(model, store)
        for _ in range(2):
            for base, other in ((ORIGINAL, A), (ORIGINAL, B), (A, B)):
                builder.trials.compare(base, other, 3.0)
        assert built == [A, B]
        assert builder.bench.measured == len(world.compared) == 3
        known = builder.trials.compare(A, Choice(forms=dict(reversed(B.forms.items()))), 3.0)
        again = Builder(model, store)
        assert again.trials.compare(A, B, 3.0) == known
        assert (built, again.bench.measured, len(world.compared)) == ([A, B], 0, 3)


def test_another_model_shape_or_selection_is_compared_again(model: Path, world: World) -> None:
    other = save(build(seed=1), model.with_name("other.onnx"))
    with Store(None) as store:
        for number, changes in enumerate(
            (
                {},
                {"loaded": load(other)},
                {"shapes": {"x": (2, 2, 6, 16)}},
                {"layers": Layers(subjects={("", "a"): "layer", ("", "b"): "layer"})},
            ),
            1,
        ):
            Builder(model, store, **changes).trials.compare(ORIGINAL, A, 3.0)
            assert len(world.compared) == number
        copy = save(build(), model.with_name("copy.onnx"))
        Builder(model, store, loaded=load(copy)).trials.compare(ORIGINAL, A, 3.0)
        assert len(world.compared) == 4, "the name of a file does not count"


def test_every_field_of_a_choice_makes_another_trial(
    model: Path, world: World, built: list[Choice]
) -> None:
    changes = {"frozen": True, "companions": (Companion.PRELU,), "forms": A.forms, "lifted": True}
    assert changes.keys() == {field.name for field in fields(Choice)}
    with Store(None) as store:
        builder = Builder(model, store)
        for name, value in changes.items():
            builder.trials.compare(ORIGINAL, Choice(**{name: value}), 3.0)
        assert len(world.compared) == len(built) == len(changes)


@pytest.mark.processes
def test_a_model_that_hangs_is_lost(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "ratio_of", sleeping)
    monkeypatch.setattr(trials, "PATIENCE", 1.0)
    with Store(None) as store:
        builder = Builder(model, store)
        found = builder.trials.compare(ORIGINAL, A, 0.5)
        assert (found.status, found.reason) == ("lost", "no result after 1.5 s; stopped")


def test_parts_of_a_choice_are_timed_in_turn_with_it(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few at a time, each once; `compare` has results of its own, as it takes more processes."""
    names = [f"layer{i}" for i in range(trials.AT_ONCE + 2)]
    world = enter(monkeypatch, World(doubled, dict.fromkeys(names, 0.5)))
    asked: list[int] = []

    def spy(function, base: Path, *args, **more):
        asked.append(len(args[0]) if function is ratios_to else 0)
        return world.isolated(function, base, *args, **more)

    monkeypatch.setattr(trials, "isolated", spy)
    every = Choice(forms=dict.fromkeys(names, "form"))
    parts = [Choice(forms={n: "form" for n in names if n != left}) for left in names]
    with Store(None) as store:
        builder = Builder(model, store)
        compared = builder.trials.compare(parts[0], every, 3.0)
        found = builder.trials.without(every, parts, 4.0)
        assert asked == [0, trials.AT_ONCE, 2]
        assert builder.trials.compare(parts[0], every, 3.0) == compared != found[0]
        assert found[1].ratio == pytest.approx(1 + 0.5 / (WHOLE - 0.5 * len(names)))
        assert builder.trials.without(every, parts, 4.0) == found
    assert len(asked) == 3


def test_of_parts_that_do_not_run_nothing_is_known_but_that(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter(monkeypatch, World(doubled, {"layer": math.nan, "other": 1.0}))
    with Store(None) as store:
        found = Builder(model, store).trials.without(B, [A, Choice(forms={"other": "form"})], 4.0)
    assert [one.status for one in found] == ["lost", "lost"]
