"""A plan is a value and a file: it makes the same model again, or says what does not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import widthfold_onnx as wf
from tests.cli.tool import schema_of
from tests.shared import ROOT
from tests.small_models import TWO_CONVS, build, save
from tests.tuning.search.nets import ALL, THREE
from tests.tuning.world import World, doubled, enter
from widthfold_onnx import CheckFailedError, Plan, UsageError
from widthfold_onnx.decide.fixed import decide_fixed
from widthfold_onnx.model.loader import Model
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.rewrite.plan import read_plan

MODELS = ROOT / "models"
OPTIONS: dict[str, dict[str, Any]] = {
    "factor": {"factor": 8},
    "ragged": {"factor": 3, "ragged": True, "input_shape": {}},
    "strides": {"form": "strides"},
    "nhwc": {"factor": 4, "layout": "nhwc"},
    "batch": {"factor": 2, "axis": "batch", "mix_samples": True},
    "guarded": {"factor": 4},
    "companions": {"factor": 4, "companion": ["prelu", "scalar", "split"]},
}


def retrained(model: onnx.ModelProto, seed: int = 5) -> onnx.ModelProto:
    """The same structure with other weights."""
    rng, copy = np.random.default_rng(seed), onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            numbers = rng.integers(-4, 5, tuple(tensor.dims)).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(numbers, tensor.name))
    return copy


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("path", sorted(MODELS.glob("*.onnx")), ids=lambda path: path.stem)
def test_a_plan_from_its_file_makes_the_same_model(
    path: Path, options: dict[str, Any], tmp_path: Path
) -> None:
    result = wf.optimize(path, no_verify=True, **options)
    file = tmp_path / "plan.json"
    result.plan.save(file)
    plan = read_plan(file)
    assert plan == result.plan
    assert hash(plan) == hash(result.plan)
    again = wf.apply(path, plan, no_verify=True)
    assert again.SerializeToString() == result.model.SerializeToString()
    assert wf.plan(path, **options) == plan


def test_a_retrained_model_takes_the_plan_as_it_is() -> None:
    model = onnx.load(MODELS / "pitch_cnn.onnx")
    other = retrained(model)
    plan = wf.plan(model, factor=8)
    assert wf.apply(other, plan) == wf.fold(other, factor=8) != wf.fold(model, factor=8)
    assert wf.plan(other, factor=8) == plan, "weights are no part of it"


def test_a_node_without_a_name_is_named_by_its_output() -> None:
    names = [layer.node for layer in wf.plan(build(TWO_CONVS), factor=4).layers]
    assert names == ["Conv -> y", "first"]


def test_a_plan_reads_as_a_diff() -> None:
    """Sorted, one layer a line; what differs from run to run stands in the last part."""
    plan = wf.plan(MODELS / "pitch_cnn.onnx", factor=8)
    lines = plan.text().splitlines()
    assert [line for line in lines if '"form"' in line and '"structure"' in line] == [
        line for line in lines if line.startswith("    {")
    ]
    names = [json.loads(line.strip(" ,"))["node"] for line in lines if line.startswith("    {")]
    assert names == sorted(names) == ["bands", "context", "head", "onset"]
    assert json.loads(plan.text()).keys() == {"schema", "layers", "origin"}


def with_layer(**changes: Any) -> dict[str, Any]:
    """A plan of one layer, with changes to its form."""
    plan = msgspec.to_builtins(wf.plan(build(TWO_CONVS), factor=4, nodes=["first"]))
    plan["layers"][0]["form"] |= changes
    return plan


HUGE = 10**9
TWICE = with_layer()["layers"] * 2
HOSTILE: dict[str, tuple[Any, str]] = {
    "empty file": (b"", "no plan of this version"),
    "no JSON": (b"{", "no plan of this version"),
    "a list": ([], "no plan of this version"),
    "nested": (b"[" * 200_000, "no plan of this version"),
    "another version": ({"schema": "widthfold.plan/99"}, "Invalid enum value"),
    "a report": ({"schema": "widthfold.optimize/9", "sites": []}, "no plan of this version"),
    "an unknown field": ({"schema": "widthfold.plan/1", "run": "rm"}, "unknown field `run`"),
    "a huge factor": (with_layer(factor=HUGE), "<= 65536"),
    "a negative factor": (with_layer(factor=-4), ">= 1"),
    "a huge tile": (
        with_layer(axes=[{"out_tile": HUGE, "in_tile": 4, "blocked": False}] * 2),
        "<= 65536",
    ),
    "no companion": (
        {"schema": "widthfold.plan/1", "companions": [{"node": "a", "companion": "none"}]},
        "companion none replaces no node",
    ),
    "a layer twice": ({"schema": "widthfold.plan/1", "layers": TWICE}, "first is planned twice"),
    "huge sizes": ({"schema": "widthfold.plan/1", "sizes": [{"x": [1 << 50]}]}, "<= 1099511627776"),
    "no number": ({"schema": "widthfold.plan/1", "limits": {"max_flops_growth": -1}}, "> 0"),
    "a long name": (
        {"schema": "widthfold.plan/1", "frozen": ["a" * 20_000]},
        "length <= 10000",
    ),
}


@pytest.mark.parametrize(("content", "words"), HOSTILE.values(), ids=HOSTILE)
def test_what_is_no_plan_is_refused_in_one_line(content: Any, words: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    with pytest.raises(UsageError) as error:
        read_plan(file)
    assert words in str(error.value)
    assert str(error.value).startswith("plan.json: no plan of this version: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"factor": 65536, "axes": [{"out_tile": 65536, "in_tile": 65536, "blocked": False}] * 2},
        {"axes": [{"out_tile": 65536, "in_tile": 65536, "blocked": True}] * 2},
        {"batch": 65536},
        {"batch": 65536, "dense": True},
        {"channels": [1 << 24, 1 << 24]},
        {"group": 1 << 24},
        {"axes": []},
        {"axes": [{"out_tile": 4, "in_tile": 4, "blocked": False}] * 3},
        {"lift": 2},
        {"summed": True},
        {"merged": 8},
        {"axis": "nowhere", "kind": "as it pleases"},
    ],
)
def test_a_form_that_no_layer_has_is_a_misfit_or_still_exact(changes: dict[str, Any]) -> None:
    """Any plan is refused or gives a model that is proved equal, within the usual memory."""
    plan = msgspec.convert(with_layer(**changes), Plan)
    model = build(TWO_CONVS)
    try:
        assert wf.apply(model, plan) is not model
    except CheckFailedError as error:
        assert str(error).startswith("the plan does not fit the model: first: ")


def test_the_options_of_a_plan_are_those_of_the_fold() -> None:
    options = FoldOptions(
        factor=4,
        fixed_shapes=True,
        input_shapes={"x": (1, 2, 8, 16)},
        max_flops_growth=7.0,
        mix_samples=True,
    )
    fold = decide_fixed(Model(build(TWO_CONVS), None), options).plan.options
    assert (fold.fixed_shapes, fold.max_flops_growth, fold.mix_samples) == (True, 7.0, True)
    assert fold.companions == ()


def test_a_plan_fixes_one_assignment_of_sizes() -> None:
    sizes = [{"x": [1, 2]}, {"x": [3, 2]}]
    with pytest.raises(msgspec.ValidationError, match="declares one assignment of sizes, not 2"):
        msgspec.convert({"sizes": sizes, "limits": {"fixed_shapes": True}}, Plan)


def test_a_plan_file_is_valid_by_its_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter(monkeypatch, World(doubled, ALL))
    path = save(build(THREE), tmp_path / "model.onnx")
    store = tmp_path / "store.sqlite"
    options = {"provider": "cpu", "store": store, "effort": "thorough", "pad_channels": 0}
    plan = wf.optimize(path, **options).plan
    assert len(plan.layers) == 3
    for file, saved in (("measured.json", plan), ("fixed.json", wf.plan(path, factor=8))):
        saved.save(tmp_path / file)
        content = json.loads((tmp_path / file).read_text())
        jsonschema.validate(content, schema_of("plan"))
