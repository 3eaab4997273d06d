"""An earlier measurement is not taken again, and nothing else passes for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.small_models import build, save
from tests.tuning.search.nets import ALL, ONE_AXIS, found
from tests.tuning.world import World, doubled, enter
from widthfold_onnx import InvalidModelError
from widthfold_onnx.tuning.search import session as session_module

TWINS = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,1,4,32] x) => (float[1,1,4,32] y) <float[1,1,1,3] w1, float[1,1,1,3] w2>
{
    [first] a = Conv <pads = [0,1,0,1]> (x, w1)
    [second] y = Conv <pads = [0,1,0,1]> (a, w2)
}"""


def test_a_second_run_measures_nothing_and_writes_the_same(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter(monkeypatch, World(doubled, {**ALL, "second": -1.0}))
    first = found(model)
    written = model.with_name("out.onnx").read_bytes()
    again = enter(monkeypatch, World(lambda layer, form: "measured again", {}))
    second = found(model)
    assert (again.raced, again.compared, second.search.measured) == ([], [], 0)
    assert model.with_name("out.onnx").read_bytes() == written
    assert second.sites == first.sites
    assert second.search.whole == first.search.whole


@pytest.mark.parametrize(
    "changes",
    [
        {"threads": 2},
        {"provider_options": {"arena_extend_strategy": "kSameAsRequested"}},
        {"session_options": {"session.disable_prepacking": "1"}},
        {"machine": '{"onnxruntime":"another"}'},
    ],
)
def test_whatever_changes_the_times_is_measured_again(
    model: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object]
) -> None:
    enter(monkeypatch, World(doubled, ALL))
    found(model)
    world = enter(monkeypatch, World(doubled, ALL))
    if machine := changes.pop("machine", None):
        monkeypatch.setattr(session_module, "machine_identity", lambda provider: machine)
    found(model, **changes)
    # Three layers, alone and between packed tensors; with all of them, and without each.
    assert (len(world.raced), len(world.compared)) == (6, 4)


def test_a_file_that_is_replaced_meanwhile_gets_no_measurements(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = enter(monkeypatch, World(doubled, ALL))

    def replaced(function: object, *args: object, **more: object) -> object:
        if not world.children:
            save(build(TWINS), model)
        return world.isolated(function, *args, **more)

    monkeypatch.setattr(session_module, "isolated", replaced)
    with pytest.raises(InvalidModelError, match="changed"):
        found(model)
    assert world.compared == []


def test_another_selection_of_alike_layers_is_another_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(build(TWINS), tmp_path / "model.onnx")
    enter(monkeypatch, World(doubled, {"first": 1.0, "second": -3.0}))
    assert found(path, fold={**ONE_AXIS, "nodes": ("first",)}).summary.folded == 1
    world = enter(monkeypatch, World(doubled, {"first": 1.0, "second": -3.0}))
    assert found(path).summary.folded == 0
    assert all(json.loads(subject)["inside"] for subject in world.raced)  # now it has neighbours
    assert world.compared == [(set(), {"first", "second"})]
