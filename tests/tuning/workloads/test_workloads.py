"""Every form of a cut-out layer computes, bit for bit, what the layer computes."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from itertools import pairwise

import msgspec
import numpy as np
import onnx
import pytest

from tests import oracle
from tests.shared import ROOT
from tests.small_models import conv
from tests.tuning.races import predicted_form
from tests.tuning.workloads.forms import LAYERS, check_forms, only_layer
from tests.tuning.workloads.tool import FOLD, integers, layers_of, workload_of
from widthfold_onnx.options import FoldOptions, Layout
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rewrite.folded_node import folded_weight
from widthfold_onnx.rules.enumeration import every_form, form_of
from widthfold_onnx.rules.form import Form
from widthfold_onnx.tuning.workloads import (
    ALIKE,
    PredictedForm,
    most_promising_first,
)


@pytest.mark.parametrize("name", LAYERS)
def test_every_form_is_the_layer_bit_for_bit(name: str) -> None:
    model = LAYERS[name]
    workload = workload_of(model)
    assert len(workload.forms) >= 8
    specs = [form.spec for form in workload.forms]
    assert len(set(specs)) == len(specs)
    dtype = np.float16 if name == "fp16" else np.float32
    result = check_forms(workload, dtype=dtype)
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in model.graph.node[0].attribute}
    x = integers(workload.model)
    if mode := attributes.pop("auto_pad", b"").decode():
        kernel = weights["w"].shape[2:]
        attributes["pads"] = oracle.resolve_auto_pad(mode, x.shape[2:], kernel, [2, 2], [1, 1])
    op = {"Conv": oracle.conv, "ConvTranspose": oracle.conv_transpose}[model.graph.node[0].op_type]
    expected = op(x, weights["w"], weights.get("b"), **attributes)
    np.testing.assert_array_equal(-result.astype(expected.dtype), expected)
    # A ConvTranspose multiplies every weight at every input position.
    assert workload.macs == (expected if op is oracle.conv else x).size * weights["w"][0].size


@pytest.mark.parametrize("name", ["same", "strided", "1-D"])
def test_so_it_is_channels_last(name: str) -> None:
    fold = FoldOptions(layout=Layout.NHWC)
    workload = workload_of(LAYERS[name], fold)
    assert any(form.spec.tile_major for form in workload.forms)
    check_forms(workload, fold)


@pytest.mark.parametrize("name", LAYERS)
def test_a_form_is_made_again_from_its_spec(name: str) -> None:
    layer = only_layer(LAYERS[name])
    forms = list(every_form(layer, FOLD))
    for form in forms:
        spec = form.spec
        again = form_of(layer, spec, FOLD)
        assert isinstance(again, Form)
        assert again.spec == spec
        folded = (folded_weight(layer, layer.read_weight(), f.fold) for f in (form, again))
        np.testing.assert_array_equal(*folded)
        for field in ("extended_in_shape", "extended_out_shape", "is_view", "flops_ratio"):
            assert getattr(again, field) == getattr(form, field)
    assert {form.spec for form in forms} == {f.spec for f in workload_of(LAYERS[name]).forms}


def test_layers_of_one_shape_differ_where_their_weights_fall_into_groups() -> None:
    shape, weight = [1, 6, 5, 8], (6, 6, 1, 1)
    subjects = {workload_of(conv(shape, weight, blocks=n)).subject for n in (1, 2, 3, 6)}
    assert len(subjects) == 4
    assert {json.loads(subject).get("groups") for subject in subjects} == {None, 2, 3, 6}
    dense = only_layer(conv(shape, weight))
    for form in every_form(only_layer(conv(shape, weight, blocks=2)), FOLD):
        if form.spec.kind == "grouped":
            refusal = form_of(dense, form.spec, FOLD)
            assert isinstance(refusal, Refusal)
            assert refusal.code == "joined-channels"


def test_the_most_promising_come_first() -> None:
    predicted = [form.predicted_seconds for form in workload_of(LAYERS["same"]).forms]
    assert all(first <= ALIKE * second for first, second in pairwise(predicted))
    assert predicted[0] < predicted[-1]


def test_an_open_extent_takes_the_measured_one_or_none_at_all() -> None:
    model = conv(["n", 1, 4, "w"], (2, 1, 3, 3), pads=[1, 1, 1, 1])
    (refusal,) = layers_of(model, FOLD, {}).subjects.values()
    assert isinstance(refusal, Refusal)
    assert refusal.code == "unknown-extent"
    workload = workload_of(model, FOLD, {"x": (3, 1, 4, 10)})
    assert json.loads(workload.subject)["input"] == [3, 1, 4, 10]
    assert {form.form.structure["input"][-1] for form in workload.forms} == {10}
    check_forms(pickle.loads(pickle.dumps(workload)))  # it runs in another process


def test_specs_are_the_same_in_every_process() -> None:
    names = "same", "1-D", "batch", "fp16"
    script = (
        "from tests.tuning.workloads.test_workloads import *\n"
        f"for name in {names}:\n"
        "    found = workload_of(LAYERS[name])\n"
        "    print(found.subject, *(form.spec.text for form in found.forms), sep='\\n')\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PATH": ""},
            cwd=ROOT,
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    (output,) = outputs
    lines = output.decode().splitlines()
    here = [workload_of(LAYERS[name]) for name in names]
    assert lines == [t for u in here for t in (u.subject, *(form.spec.text for form in u.forms))]


def test_of_forms_that_are_predicted_alike_the_simpler_come_first() -> None:
    spec = workload_of(LAYERS["same"]).forms[0].spec

    def named(kind: str, seconds: float) -> PredictedForm:
        return predicted_form(msgspec.structs.replace(spec, kind=kind), 1.0, seconds)

    alike = [named("two+axes", 1.0), named("one axis", 0.9 * ALIKE)]
    others = [named("slow", 1.1 * ALIKE), named("slower", 9.0)]
    kinds = [form.spec.kind for form in most_promising_first([*others, *alike])]
    assert kinds == ["one axis", "two+axes", "slow", "slower"]
