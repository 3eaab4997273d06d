"""Decisions of the search, by measurements that were made up."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.folding import optimize
from tests.tuning.search.nets import (
    ALL,
    ONE_AXIS,
    found,
    options,
    status,
    two_then_four,
)
from tests.tuning.workloads.tool import search_text
from tests.tuning.world import World, doubled, enter, folded
from widthfold_onnx.errors import UsageError
from widthfold_onnx.options import Effort, FoldOptions, Provider, SearchOptions
from widthfold_onnx.progress import Step, progress_to
from widthfold_onnx.runtime.child import Child
from widthfold_onnx.runtime.inputs.sizes import provider_and_sizes
from widthfold_onnx.tuning import bench as bench_module
from widthfold_onnx.tuning.effort import SPENDING
from widthfold_onnx.tuning.identity import machine_identity
from widthfold_onnx.tuning.search import STAGES
from widthfold_onnx.tuning.search import session as session_module
from widthfold_onnx.tuning.search.race import MAX_LEVEL_RATIO
from widthfold_onnx.tuning.search.timers import send_each
from widthfold_onnx.tuning.successive_halving import race
from widthfold_onnx.tuning.tune import tune


def test_what_pays_is_folded_and_the_report_says_how_much(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = enter(monkeypatch, World(doubled, ALL))
    report = found(model, fold={"pad_channels": 0})
    assert folded(model.with_name("out.onnx")) == ALL.keys()
    assert {(s.status, s.axis, s.factor) for s in report.sites} == {("folded", "width", 2)}
    assert all((s.gain.ratio, s.gain.low, s.gain.pairs) == (2.0, 1.8, 40) for s in report.sites)
    search = report.search
    assert search is not None
    assert (search.accepted, search.interrupted, search.layers) == (True, False, 3)
    assert search.whole.ratio == pytest.approx(10 / 7)
    assert [size.shapes for size in search.sizes] == [{"x": [1, 1, 4, 32]}]
    assert search.measured > search.forms > 20
    assert len(world.raced) == 6  # alone, and between packed tensors


def test_progress_calls_each_step_by_its_stage(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[Step] = []
    enter(monkeypatch, World(doubled, ALL))
    with progress_to(steps.append):
        found(model)
    names = [stage.__name__ for stage in STAGES]
    assert names == ["exchange", "race", "settle", "pad", "confirm"]
    shown = [name for step in steps if (name := step.text.partition(": ")[0]) in names]
    assert list(dict.fromkeys(shown)) == ["race", "settle", "confirm"]  # no companion, no padding
    assert "confirm: timing the whole model" in [step.text for step in steps]


def test_a_model_that_does_not_run_is_not_shipped(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter(monkeypatch, World(doubled, dict.fromkeys(ALL, math.nan)))
    report = found(model)
    assert model.with_name("out.onnx").read_bytes() == model.read_bytes()
    assert not report.search.accepted
    assert search_text(report.search).endswith(
        "folded, the whole model was not timed: the child process died of SIGSEGV"
    )


@pytest.mark.parametrize(
    ("saved", "noise"), [(0.0, 0.005), (0.05, 0.005), (0.4, 0.1), (-1.0, 0.005)]
)
def test_without_a_gain_beyond_the_noise_the_output_is_the_input(
    model: Path, monkeypatch: pytest.MonkeyPatch, saved: float, noise: float
) -> None:
    enter(monkeypatch, World(doubled, dict.fromkeys(ALL, saved), noise))
    report = found(model)
    assert model.with_name("out.onnx").read_bytes() == model.read_bytes()
    assert (report.search.accepted, report.written, report.verification) == (
        False,
        "out.onnx",
        None,
    )
    assert set(status(report).values()) == {"no-gain"}
    assert report.search.whole is not None


def test_only_the_stored_final_is_against_the_original(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No form pays alone, by 4 it does between packed tensors: that is no quick trial's to say."""

    def alone(layer, form):
        inside = 5 if layer.get("inside") and form["factor"] == 4 else 0.5
        return two_then_four(form, inside)

    world = enter(monkeypatch, World(alone, ALL))
    assert found(model).summary.folded > 0
    against = [b for (base, _), b in zip(world.compared, world.budgets, strict=True) if not base]
    assert against == [SPENDING[Effort.THOROUGH].final]


def test_what_was_tuned_does_not_race_again(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = enter(monkeypatch, World(lambda layer, form: (1.5, 1.4), ALL))
    tune(
        [model],
        FoldOptions(**ONE_AXIS),
        SearchOptions(**{**options(model), "effort": Effort.QUICK}),
    )
    assert len(world.raced) == 6
    found(model, effort=Effort.QUICK)
    assert len(world.raced) == 6


@pytest.mark.parametrize("changes", [{"threads": 0}, {"threads": 2000}, {"time_budget": math.nan}])
def test_numbers_out_of_their_range_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=r"threads is \d+; it must lie in|time-budget is nan"):
        SearchOptions(**changes)


def test_no_time_is_spent_for_an_output_that_cannot_be(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = enter(monkeypatch, World(doubled, ALL))
    for out in (model, model.parent / "missing" / "out.onnx", model.parent):
        with pytest.raises(UsageError, match="output"):
            optimize(model, out, FoldOptions(), None, SearchOptions(**options(model)))
    assert (world.raced, world.compared) == ([], [])


def test_one_child_runs_what_a_search_measures(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The provider, the races at both levels, and the trials; it ends with the search."""
    world = enter(monkeypatch, World(doubled, ALL, levels=MAX_LEVEL_RATIO))
    found(model)
    functions = {function for function, _ in world.children}
    assert functions == {provider_and_sizes, race, send_each}
    assert len(set(world.at)) == 2
    (child,) = {child for _, child in world.children}
    assert child is not None
    assert child._waiting is None


def test_on_an_accelerator_every_task_has_a_child_of_its_own(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that chose the provider has ended, as it holds memory of the accelerator."""
    world = enter(monkeypatch, World(doubled, ALL))
    children: list[Child] = []
    waiting: list[object] = []

    def choose(*arguments: object, child: Child) -> tuple[Provider, object]:
        children.append(child)
        child._waiting = "a process"
        return Provider.CUDA, ({"x": (1, 1, 4, 32)},)

    def measure(*arguments: object, **limits: object) -> object:
        waiting.append(children[0]._waiting)
        return world.isolated(*arguments, **limits)

    monkeypatch.setattr(session_module, "isolated", choose)
    monkeypatch.setattr(bench_module, "isolated", measure)
    monkeypatch.setattr(
        session_module, "machine_identity", lambda provider: machine_identity("cpu")
    )
    found(model, provider=Provider.CUDA)
    assert {function for function, _ in world.children} == {race, send_each}
    assert {child for _, child in world.children} == {None}
    assert set(waiting) == {None}


def test_a_target_must_fit_the_provider_that_was_found(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = (Provider.CPU, {"x": (1, 1, 4, 32)})
    monkeypatch.setattr(session_module, "isolated", lambda *arguments, **limits: here)
    with pytest.raises(UsageError, match="target h100 is of provider cuda, not cpu"):
        found(model, provider=Provider.AUTO, target="h100")
