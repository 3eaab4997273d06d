"""A plan is a value and a file: it makes the same model again, or says what does not fit."""

from __future__ import annotations

import json
from collections.abc import Callable
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
from tests.lacking import needs_prelu
from tests.shared import ROOT
from tests.small_models import build, save
from tests.tuning.search.nets import ALL, THREE
from tests.tuning.world import World, doubled, enter
from widthfold_onnx import CheckFailedError, Plan, UsageError
from widthfold_onnx.decide.fixed import decide_fixed
from widthfold_onnx.model.loader import Model
from widthfold_onnx.options import Companion, FoldOptions
from widthfold_onnx.rewrite.fit import FittedPlan
from widthfold_onnx.rewrite.plan import CompanionPlan, read_plan

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
TWO = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,2,8,16] x) => (float[1,3,8,16] y) <float[4,2,1,3] w1, float[3,4,1,3] w2>
{
    [first] a = Conv <pads = [0,1,0,1]> (x, w1)
    b = Relu (a)
    y = Conv <pads = [0,1,0,1]> (b, w2)
}"""


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
    names = [layer.node for layer in wf.plan(build(TWO), factor=4).layers]
    assert names == ["Conv -> y", "first"]


def other_kernel(model: onnx.ModelProto) -> None:
    weight = model.graph.initializer[0]
    weight.CopyFrom(numpy_helper.from_array(np.ones((4, 2, 1, 5), np.float32), weight.name))
    model.graph.node[0].attribute[0].ints[:] = [0, 2, 0, 2]


def other_extents(model: onnx.ModelProto) -> None:
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[3].dim_value = 20


def other_name(model: onnx.ModelProto) -> None:
    model.graph.node[0].name = "stem"


def other_type(model: onnx.ModelProto) -> None:
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    for tensor in model.graph.initializer:
        numbers = numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(numpy_helper.from_array(numbers, tensor.name))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (other_kernel, ["first: weight is [4, 2, 1, 5], planned [4, 2, 1, 3]", "first: "]),
        (other_extents, ["first: input is [1, 2, 8, 20], planned [1, 2, 8, 16]", "Conv -> y"]),
        (other_name, ["first: the model has no such layer"]),
        (other_type, ['first: element is "DOUBLE", planned "FLOAT"']),
    ],
)
def test_what_does_not_fit_is_named_and_the_rest_can_be_applied(
    change: Callable[[onnx.ModelProto], None], words: list[str]
) -> None:
    model = build(TWO)
    plan = wf.plan(model, factor=4)
    change(model)
    with pytest.raises(CheckFailedError) as error:
        wf.apply(model, plan)
    assert all(word in str(error.value) for word in words), error.value
    misfits = {misfit.name.node for misfit in FittedPlan.of(Model(model, None), plan).misfits}
    rest = wf.apply(model, plan, partial=True)
    assert len(plan.layers) - len(misfits) == sum(
        any(entry.key == "widthfold.fold" for entry in node.metadata_props)
        for node in rest.graph.node
    )


def test_a_form_that_needs_zeros_in_the_weight_is_refused_where_they_are_gone() -> None:
    """Groups of a block-diagonal weight: another training need not keep the zeros."""
    model = build(TWO)
    weight = np.zeros((4, 2, 1, 3), np.float32)
    weight[:2, 0], weight[2:, 1] = 1, 2
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w1"))
    plan = wf.plan(model, factor=4)
    (layer,) = [layer for layer in plan.layers if layer.node == "first"]
    spec = msgspec.structs.replace(layer.form, group=2)
    grouped = msgspec.structs.replace(plan, layers=(msgspec.structs.replace(layer, form=spec),))
    assert wf.apply(model, grouped) is not model
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight + 1, "w1"))
    with pytest.raises(CheckFailedError, match="the weight is not zero between 2 groups"):
        wf.apply(model, grouped)


def test_a_model_that_carries_folds_takes_no_plan() -> None:
    model = build(TWO)
    plan = wf.plan(model, factor=4)
    with pytest.raises(CheckFailedError, match="fold the original instead"):
        wf.apply(wf.fold(model, factor=4), plan)


def test_frozen_weights_and_companions_that_are_missing_are_named() -> None:
    model = build(TWO)
    changes = {
        "frozen": ("w1",),
        "companions": ({"node": "act", "companion": "prelu"},),
    }
    plan = msgspec.convert({"schema": "widthfold.plan/1", **changes}, Plan)
    misfits = list(map(str, FittedPlan.of(Model(model, None), plan).misfits))
    assert misfits == [
        "w1: no weight of this name is an input",
        "act: companion prelu: no node of this name matches",
    ]
    assert str(plan) == "act  companion prelu\nw1   frozen"


def test_a_companion_that_is_refused_has_its_reason() -> None:
    model = build(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[1,2,8,16] x, float[1] s) => (float[1,2,8,16] y) { [act] y = PRelu (x, s) }"""
    )
    plan = Plan(companions=(CompanionPlan(node="act", companion=Companion.PRELU),))
    with pytest.raises(CheckFailedError, match="act: companion prelu: the slope s is an input"):
        wf.apply(model, plan)


def test_the_parts_that_fit_are_a_plan_of_their_own() -> None:
    model = build(TWO)
    plan = wf.plan(model, factor=4)
    companion = CompanionPlan(node="act", companion=Companion.PRELU)
    more = msgspec.structs.replace(plan, frozen=("w1",), companions=(companion,))
    assert FittedPlan.of(Model(model, None), more).plan == plan


@needs_prelu
def test_a_node_is_replaced_by_the_companion_that_the_plan_says_and_no_other() -> None:
    model = build(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[1,2,8,16] x) => (float[1,2,8,16] y) <float[1] s = {0.25}>
        {
            [p] a = PRelu (x, s)
            [q] y = PRelu (a, s)
        }"""
    )
    companions = (
        CompanionPlan(node="p", companion=Companion.SCALAR),
        CompanionPlan(node="q", companion=Companion.PRELU),
    )
    changed = wf.apply(model, wf.Plan(companions=companions), partial=True)
    first, *others = [node.op_type for node in changed.graph.node]
    assert first == "PRelu"
    assert "PRelu" not in others


def test_a_size_of_the_plan_that_does_not_fit_is_named() -> None:
    model = build(TWO)
    plan = msgspec.structs.replace(wf.plan(model, factor=4), sizes=({"x": (1, 2, 8, 17)},))
    with pytest.raises(CheckFailedError, match="the sizes of the plan do not fit the model: "):
        wf.apply(model, plan)


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
    plan = msgspec.to_builtins(wf.plan(build(TWO), factor=4, nodes=["first"]))
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
    model = build(TWO)
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
    fold = decide_fixed(Model(build(TWO), None), options).plan.options
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
