"""Whole models are compared once, and never taken for one another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, helper

from tests.small_models import build, save
from tests.tuning.races import bench
from tests.tuning.workers import sleeping
from tests.tuning.world import WHOLE, World, doubled, enter
from widthfold_onnx.decide.decisions import decisions_of
from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.model.linking import NodeName
from widthfold_onnx.model.loader import Model, load
from widthfold_onnx.options import (
    Companion,
    Effort,
    FoldOptions,
    Provider,
    RuntimeOptions,
    SearchOptions,
    Sizes,
)
from widthfold_onnx.results import Gain
from widthfold_onnx.rewrite.draft import CompanionPlan, Draft, Limits, PaddedLayer, PaddingPlan
from widthfold_onnx.rewrite.exchange import Match
from widthfold_onnx.rewrite.padding import PaddableChains
from widthfold_onnx.rewrite.reading import Reading
from widthfold_onnx.rewrite.rewriting import Rewriting, rewrite
from widthfold_onnx.rewrite.scratch import Scratch
from widthfold_onnx.rules.form import Form
from widthfold_onnx.rules.selection import preferred_form
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.runtime.session import open_session
from widthfold_onnx.tuning.layers import Layers
from widthfold_onnx.tuning.measurement import Measurement
from widthfold_onnx.tuning.search import trials
from widthfold_onnx.tuning.search.level_race import LevelRace
from widthfold_onnx.tuning.search.session import SearchDraft, SearchSession
from widthfold_onnx.tuning.search.timers import time_in_process, time_in_turn
from widthfold_onnx.tuning.search.trials import (
    ORIGINAL,
    compare,
    final_trials,
    level_ratio,
    ratios_to,
    stored_final,
)
from widthfold_onnx.tuning.store import Store
from widthfold_onnx.tuning.targets import load_target

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,2,6,16] x) => (float[1,2,6,16] y)
<float[3,2,3,3] w1, float[2,3,1,5] w2, float[1] slope = {0.25}, float k>
{
    [layer] a = Conv <pads = [1,1,1,1]> (x, w1)
    [prelu] p = PRelu (a, slope)
    [other] b = Conv <pads = [0,2,0,2]> (p, w2)
    y = Add (b, k)
}"""
GAIN = Gain(ratio=2.0, low=1.9, high=2.1, pairs=40)


def overridable(seed: int = 0) -> ModelProto:
    """The model; its last constant is an input, too."""
    proto = build(TEXT, seed=seed)
    proto.graph.input.append(helper.make_tensor_value_info("k", 1, []))
    return proto


def draft(proto: ModelProto, *names: str) -> SearchDraft:
    """Fold the named layers, or all, by 2 along the width."""
    options = FoldOptions(factor=2, axis="width", nodes=names)
    unchanged = SearchDraft.unchanged(options)
    reading = Reading.of(Model(proto, None), unchanged)
    decisions = decisions_of(reading, options.selection, partial(preferred_form, options=options))
    forms = {d.name: d.answer for d in decisions if isinstance(d.answer, Form)}
    assert len(forms) == (len(names) or len(decisions))
    return unchanged.with_forms(forms)


A, B = draft(overridable(), "layer"), draft(overridable())


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save(overridable(), tmp_path / "model.onnx")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return enter(monkeypatch, World(doubled, {"layer": 2.0, "other": 3.0}))


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Draft]:
    """The drafts from which models were built."""
    drafts: list[Draft] = []

    def spy(reading: Reading, forms: Mapping[NodeName, Form]) -> Rewriting:
        drafts.append(reading.draft)
        return rewrite(reading, forms)

    monkeypatch.setattr(trials, "rewrite", spy)
    return drafts


def session_of(
    model: Path,
    store: Store,
    sizes: Sizes = ({"x": (1, 2, 6, 16)},),
    original: Path | None = None,
) -> SearchSession:
    """A session that times a model."""
    folder = model.parent / "trials"
    folder.mkdir(exist_ok=True)
    loaded = load(original or model)
    return SearchSession(
        loaded,
        FoldOptions(),
        SearchOptions(provider=Provider.CPU, effort=Effort.THOROUGH),
        sizes,
        load_target("cpu-avx2"),
        bench(store),
        Scratch(loaded, folder),
    )


def test_a_failure_names_the_model_that_failed(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(send_each, timer: partial, *rest: object, **limits: object) -> None:
        _, other = timer.args
        save(build(TEXT.replace("[1,2,6,16] x", "[1,2,6,9] x")), other)
        open_session(other, RuntimeOptions(provider="cpu")).run({"x": np.ones((1, 2, 6, 8))})

    monkeypatch.setattr(trials, "isolated", broken)
    with Store(None) as store:
        measurement = compare(session_of(model, store), ORIGINAL, A, 3.0)
    assert measurement.reason.startswith("the folded model does not run: ")


def test_the_ratio_is_that_of_the_first_to_the_second(model: Path, world: World) -> None:
    with Store(None) as store:
        session = session_of(model, store)
        measurement = compare(session, A, B, 3.0)
        assert measurement.ratio == pytest.approx((WHOLE - 2) / (WHOLE - 5))
        assert measurement.seconds == pytest.approx(WHOLE - 5)
        assert (measurement.pairs, measurement.control, measurement.status) == (50, 0.005, "ok")
        assert measurement.low < measurement.ratio < measurement.high
        assert compare(session, B, A, 3.0).ratio == pytest.approx(1 / measurement.ratio)
        assert compare(session, ORIGINAL, A, 3.0).ratio == pytest.approx(WHOLE / (WHOLE - 2))
    both = {"layer", "other"}
    assert world.compared == [({"layer"}, both), (both, {"layer"}), (set(), {"layer"})]


@pytest.mark.parametrize("base", [ORIGINAL, A.with_forms({})], ids=["empty", "emptied"])
def test_the_original_is_compared_as_it_lies_there(
    model: Path, monkeypatch: pytest.MonkeyPatch, world: World, base: Draft
) -> None:
    seen: list[Path] = []

    def spy(send_each, timer: partial, *args, **more):
        seen.append(timer.args[0])
        return world.isolated(send_each, timer, *args, **more)

    monkeypatch.setattr("widthfold_onnx.tuning.search.trials.isolated", spy)
    with Store(None) as store:
        compare(session_of(model, store), base, A, 3.0)
    assert seen == [model]


def test_nothing_is_compared_twice_and_no_model_stays(
    model: Path, world: World, built: list[Draft]
) -> None:
    with Store(None) as store:
        session = session_of(model, store)
        for _ in range(2):
            for base, other in ((ORIGINAL, A), (ORIGINAL, B), (A, B)):
                compare(session, base, other, 3.0)
        assert built == [A, B, A, B]  # the second time the store knows all
        assert len(session.bench.new_measurements) == len(world.compared) == 3
        measured = compare(session, A, B, 3.0)
        again = session_of(model, store)
        assert compare(again, draft(overridable(), "layer"), B, 3.0) == measured
        assert built == [A, B, A, B]
        assert (len(again.bench.new_measurements), len(world.compared)) == (0, 3)
    assert not list((model.parent / "trials").iterdir())


def test_another_model_shape_or_selection_is_compared_again(model: Path, world: World) -> None:
    other = save(overridable(seed=1), model.with_name("other.onnx"))
    with Store(None) as store:
        for number, (changes, selection) in enumerate(
            (
                ({}, A),
                ({"original": other}, A),
                ({"sizes": ({"x": (2, 2, 6, 16)},)}, A),
                ({}, draft(overridable(), "other")),
                ({}, B),
            ),
            1,
        ):
            compare(session_of(model, store, **changes), ORIGINAL, selection, 3.0)
            assert len(world.compared) == number
        copy = save(overridable(), model.with_name("copy.onnx"))
        compare(session_of(model, store, original=copy), ORIGINAL, A, 3.0)
        assert len(world.compared) == 5, "the name of a file does not count"


CHANGES = {
    "frozen": ("k",),
    "companions": (CompanionPlan(node="prelu", companion=Companion.PRELU),),
    "padding": PaddingPlan(multiple=4, layers=(PaddedLayer(node="a", channels=5, padded=8),)),
    "forms": B.forms,
    "sizes": ({"x": (1, 2, 6, 16)},),
    "limits": Limits(mix_samples=True, max_flops_growth=2.5),
}
"""Other values of the fields of a draft that change the model, or may."""

EVIDENCE = {
    "companion_matches": (Match(Companion.PRELU, NodeName("", "prelu"), "PRelu", ("LeakyRelu",)),),
    "companion_gains": {Companion.PRELU: [GAIN]},
    "races": (LevelRace(Layers(load_target("cpu-avx2"), FoldOptions()), bench(Store(None))),),
    "all_to_extended": Measurement.of_ratio(1.0, 1.0, 1.0, 1.0, 4),
    "is_interrupted": True,
    "specs": {"subject": next(iter(A.forms.values())).spec},
    "paddable": PaddableChains(8, [], []),
    "padding_gain": GAIN,
    "finals": (None,),
}
"""Other values of the fields that say how a draft was decided."""


def test_every_field_that_changes_the_model_makes_another_trial(
    model: Path, world: World, built: list[Draft]
) -> None:
    assert CHANGES.keys() == {field.name for field in fields(Draft)}
    drafts = [A, *(replace(A, **{name: value}) for name, value in CHANGES.items())]
    with Store(None) as store:
        session = session_of(model, store)
        for number, other in enumerate(drafts, 1):
            compare(session, ORIGINAL, other, 3.0)
            assert (built, len(world.compared)) == (drafts[:number], number)


def test_drafts_of_equal_changes_and_other_evidence_are_one_trial(
    model: Path, world: World, built: list[Draft]
) -> None:
    assert {*CHANGES, *EVIDENCE, "level"} == {field.name for field in fields(SearchDraft)}
    with Store(None) as store:
        session = session_of(model, store)
        measurement = compare(session, A, B, 3.0)
        for name, value in EVIDENCE.items():
            first, second = (replace(each, **{name: value}) for each in (A, B))
            assert (first, second) != (A, B)
            assert compare(session, first, second, 3.0) == measurement
    assert (built, len(world.compared)) == ([A, B], 1)


@pytest.mark.parametrize("levels", [False, True], ids=["decide", "levels"])
def test_the_other_trials_are_of_one_plan_each_as_well(
    model: Path, world: World, levels: bool
) -> None:
    with Store(None) as store:
        session = session_of(model, store)
        time_one = level_ratio if levels else partial(final_trials, level=None)
        times = [time_one(session, each) for each in (A, B, replace(A, **EVIDENCE), B)]
        assert times[:2] == times[2:]
        assert len(session.bench.new_measurements) == 2
        assert stored_final(session, A) == (None if levels else times[0][0])


@pytest.mark.processes
def test_a_model_that_hangs_is_lost(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "time_in_process", sleeping)
    monkeypatch.setattr(trials, "HANG_SECONDS", 1.0)
    with Store(None) as store:
        session = session_of(model, store)
        measurement = compare(session, ORIGINAL, A, 0.5)
        assert (measurement.status, measurement.reason) == (
            "lost",
            "silent for 1.5 s; stopped",
        )


def chain(names: Sequence[str]) -> ModelProto:
    """Convs in a row, of one channel and the same kernel."""
    weights = ", ".join(f"float[1,1,1,3] w{i}" for i in range(len(names)))
    nodes = "\n".join(
        f"[{name}] v{i + 1} = Conv <pads = [0,1,0,1]> (v{i}, w{i})" for i, name in enumerate(names)
    )
    return build(f"""<ir_version: 8, opset_import: ["" : 17]>
g (float[1,1,4,32] v0) => (float[1,1,4,32] v{len(names)}) <{weights}> {{ {nodes} }}""")


def test_parts_of_a_plan_are_timed_in_turn_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few at a time, each once; `compare` has its own results: each model at its own setting."""
    names = [f"layer{i}" for i in range(trials.MAX_MODELS_IN_MEMORY + 2)]
    world = enter(monkeypatch, World(doubled, dict.fromkeys(names, 0.5)))
    counts: list[int] = []

    def spy(send_each, timer: partial, *args, **more):
        counts.append(len(timer.args[1]) if timer.func is time_in_turn else 0)
        return world.isolated(send_each, timer, *args, **more)

    monkeypatch.setattr(trials, "isolated", spy)
    every = draft(chain(names))
    parts = [every.without([NodeName("", name)]) for name in names]
    with Store(None) as store:
        model = save(chain(names), tmp_path / "chain.onnx")
        session = session_of(model, store, sizes=({"v0": (1, 1, 4, 32)},))
        compared = compare(session, parts[0], every, 3.0)
        measurement = ratios_to(session, every, parts, 4.0)
        assert counts == [0, trials.MAX_MODELS_IN_MEMORY, 2]
        assert compare(session, parts[0], every, 3.0) == compared != measurement[0]
        assert measurement[1].ratio == pytest.approx(1 + 0.5 / (WHOLE - 0.5 * len(names)))
        assert ratios_to(session, every, parts, 4.0) == measurement
    assert len(counts) == 3


FIRST, LARGER = {"x": (1, 2, 6, 16)}, {"x": (3, 2, 6, 16)}


def test_trials_at_one_level_answer_for_no_others(model: Path, world: World) -> None:
    with Store(None) as store:
        for level in (Level.ALL, None, Level.ALL, None):
            session = session_of(model, store)
            compare(session, ORIGINAL, replace(A, level=level), 3.0)
            ratios_to(session, replace(B, level=level), [A], 3.0)
    assert world.levels == [
        (function, level)
        for level in (Level.ALL, None)
        for function in (time_in_process, time_in_turn)
    ]


def test_a_failure_at_a_larger_size_leaves_the_first_one_measured(
    model: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*args, on_message, **more):
        results: list = []
        world.isolated(*args, on_message=results.append, **more)
        on_message(results[0])
        raise UnverifiedError("out of memory")

    monkeypatch.setattr(trials, "isolated", failing)
    with Store(None) as store:
        both = compare(session_of(model, store, sizes=(FIRST, LARGER)), ORIGINAL, A, 3.0)
        assert both.reason == "out of memory"
        monkeypatch.setattr(trials, "isolated", None)
        first = compare(session_of(model, store, sizes=(FIRST,)), ORIGINAL, A, 1.5)
        assert first.status == "ok"


def test_what_is_complete_at_a_size_is_not_replaced_by_a_shorter_trial(
    model: Path, world: World
) -> None:
    with Store(None) as store:
        before = ratios_to(session_of(model, store, sizes=(FIRST,)), B, [A], 9.0)
        both = session_of(model, store, sizes=(FIRST, LARGER))
        assert None not in ratios_to(both, B, [A, ORIGINAL], 2.0)
        assert ratios_to(session_of(model, store, sizes=(FIRST,)), B, [A], 9.0) == before
        assert before[0].budget == 9.0


def test_of_parts_that_do_not_run_nothing_is_known_but_that(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter(monkeypatch, World(doubled, {"layer": math.nan, "other": 1.0}))
    with Store(None) as store:
        parts = [A, draft(overridable(), "other")]
        measurement = ratios_to(session_of(model, store), B, parts, 4.0)
    assert [entry.status for entry in measurement] == ["lost", "lost"]


def test_a_part_that_does_not_run_hides_no_other_one(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter(monkeypatch, World(doubled, {"layer": math.nan, "other": 3.0}))
    with Store(None) as store:
        measurements = ratios_to(
            session_of(model, store), draft(overridable(), "other"), [A, ORIGINAL], 4.0
        )
    assert [entry.status for entry in measurements] == ["lost", "ok"]
    assert measurements[1].ratio == pytest.approx(WHOLE / (WHOLE - 3))


def test_trials_leave_out_sizes_that_are_not_larger_than_the_first(
    model: Path, world: World
) -> None:
    with Store(None) as store:
        session = session_of(model, store, sizes=(FIRST, {"x": (1, 2, 16, 6)}, LARGER))
        compare(session, ORIGINAL, A, 3.0)
        assert len(session.bench.new_measurements) == 2
        assert len(final_trials(session, A, None)) == 3
        assert len(session.bench.new_measurements) == 5
