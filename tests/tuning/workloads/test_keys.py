"""The keys of the store hold what decides a time: every field that feeds them, or a reason."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import onnx
import pytest

from tests.folding import read
from tests.operators.products import Product
from tests.small_models import conv
from tests.tuning.workloads.tool import FOLD
from widthfold_onnx.decide.decisions import read_sites
from widthfold_onnx.options import (
    Companion,
    Effort,
    FoldOptions,
    FormName,
    Layout,
    NonFinite,
    Provider,
    SearchOptions,
)
from widthfold_onnx.rules.enumeration import every_form
from widthfold_onnx.rules.form import Form
from widthfold_onnx.rules.layers import Layer, ProductLayer
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.tuning.bench import Bench
from widthfold_onnx.tuning.effort import RaceOptions
from widthfold_onnx.tuning.store import Store
from widthfold_onnx.tuning.workloads import _subject

LIMIT = "decides which forms exist, not how fast one is"
SELECTION = "decides which layers are measured; a whole model's subject lists them"

LAYERS = (
    conv([2, 4, 4, 8], (6, 2, 3, 3), pads=[1, 1, 1, 1], group=2),
    conv([2, 4, 9], (4, 3, 5), strides=[3], group=2, op="ConvTranspose"),
    conv([1, 1, 4, 4, 8], (2, 1, 1, 1, 1)),
    Product(shape=[2, 3, 16, 3], weight=[3, 5]).model(),
    Product(shape=[2, 3, 64], weight=[5, 3], weight_on_left=True).model(),
)


def layers() -> Iterator[tuple[Layer, Form]]:
    """A layer of every family, in all its forms."""
    for model in LAYERS:
        for _, layer in read_sites(read(model, FOLD)):
            assert isinstance(layer, Layer)
            yield from ((layer, form) for form in every_form(layer, FOLD))


def changed(value: Any) -> Any:
    """Another value of the same type; None if it holds other fields, which are changed instead."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return f"{value}x"
    return None


def alterations(
    value: Any, left_out: Mapping[str, str], another: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """The whole with another value in one field, for every field that is not left out."""
    if isinstance(value, tuple):
        for index, item in enumerate(value):
            for name, other in alterations(item, left_out, another):
                yield name, (*value[:index], other, *value[index + 1 :])
    if not dataclasses.is_dataclass(value):
        return
    for field in dataclasses.fields(value):
        if {field.name, f"{type(value).__name__}.{field.name}"} & left_out.keys():
            continue
        old = getattr(value, field.name)
        new = another.get(field.name, changed(old))
        inside = field.name not in another and new is None
        changes = list(alterations(old, left_out, another)) if inside else [(field.name, new)]
        assert changes, f"{type(value).__name__}.{field.name}: neither changed nor given a reason"
        for name, other in changes:
            yield name, dataclasses.replace(value, **{field.name: other})


def test_every_field_of_a_form_is_in_its_text() -> None:
    """The store keys a measurement by the text of its form, which is made from its spec alone."""
    for spec in (form.spec for _, form in layers()):
        for field in spec.__struct_fields__:
            old = getattr(spec, field)
            others = [(old[0] + 1, *old[1:])] if field == "channels" else [changed(old)]
            if field == "axes":
                others = [
                    (msgspec.structs.replace(old[0], **{tile: changed(getattr(old[0], tile))}),)
                    for tile in old[0].__struct_fields__
                ]
            for other in others:
                assert msgspec.structs.replace(spec, **{field: other}).text != spec.text, field


IDENTITY = "which node it is, not what it computes"
PLANNED = "decides which forms exist; the measured extents are given beside the layer"
VALUES = "layers that differ in their numbers alone take equally long"
NOT_IN_THE_SUBJECT = {
    **dict.fromkeys(("node", "scope", "name"), IDENTITY),
    **dict.fromkeys(("fixed_shape", "planned_shape", "samples", "opset", "shuffles"), PLANNED),
    **dict.fromkeys(("is_open", "pad_period"), PLANNED),
    "read_weight": VALUES,
    "parameters": "the weight alone and the other parameters are changed one after the other",
    "filler": "of quantized weights only, where the subject says whether it is 0",
    "dequantizer": "the node that is folded away; `quantization` says whether there is one",
    "per_channel": "of quantized weights only, where the subject says whether there are any",
    "itemsize": "follows from the element type",
    **dict.fromkeys(("length", "stored_rank"), "the extents are given beside the layer"),
    "kernel": "the shape of the weight has it",
    "operator": "follows from the op and the side of the weight, which the subject says",
}
NOT_OF_PRODUCTS = dict.fromkeys(
    ("axes", "group", "weight_shape"),
    "the subject has the stored shape of the weight, and its side",
)
PARAMETER: Any = SimpleNamespace(constant=SimpleNamespace(dtype="DOUBLE", shape=(5,)), vectors=())
ANOTHER: Mapping[str, Any] = {
    "weight_shape": (7, 7),
    "quantization": SimpleNamespace(dtype="INT8", dequantized=True),
}


def test_every_field_of_a_layer_is_in_its_subject_or_has_a_reason() -> None:
    graph = onnx.parser.parse_graph("g (float[1] x) => (float[1] y) { y = Neg (x) }")
    seen = set()
    for layer in {id(layer): layer for layer, _ in layers()}.values():
        subject = _subject(layer, [1], graph, 0)
        left_out = NOT_IN_THE_SUBJECT | (NOT_OF_PRODUCTS if isinstance(layer, ProductLayer) else {})
        for name, other in alterations(layer, left_out, ANOTHER):
            assert _subject(other, [1], graph, 0) != subject, name
            seen.add(name)
        index = layer.operator.inputs.weight
        weight = {index: layer.parameters[index]}
        for parameters in ({**layer.parameters, index: PARAMETER}, {**weight, 9: PARAMETER}):
            other = dataclasses.replace(layer, parameters=parameters)
            assert _subject(other, [1], graph, 0) != subject
    assert {"op", "is_finite", "group", "stride", "base_dilation", *ANOTHER} <= seen


SETTING: Mapping[str, Any] = {
    "provider": Provider.CUDA,
    "provider_options": {"a": "b"},
    "session_options": {"a": "b"},
    "threads": 2,
}
SEARCH_ALONE = {
    "effort": "decides what is measured; a measurement says how often something ran",
    "time_budget": "a measurement that was skipped for want of time says how much there was",
    "store": "where the measurements are",
    "target": "orders what is measured",
    "measure": "decides whether anything is measured",
    "inputs": "the shapes are in the subject, and the data in that of a whole model",
    **dict.fromkeys(("values", "cases"), "a whole model has them in its subject"),
    "index_limits": "follow from the model, which is the subject",
    "weight_extents": "follow from the model, which is the subject",
}
FOLDING: Mapping[str, Any] = {}
FOLD_ALONE = {
    **dict.fromkeys(
        ("factor", "form", "axis", "layout", "ragged", "mix_samples", "nonfinite"), LIMIT
    ),
    **dict.fromkeys(("max_flops_growth", "max_bytes_growth", "fixed_shapes"), LIMIT),
    **dict.fromkeys(("max_channels", "nodes", "skip"), SELECTION),
    "input_shapes": "the subject holds the extents",
    **dict.fromkeys(
        ("companions", "freeze_weights", "pad_channels"), "layers are cut out of what they leave"
    ),
}
OTHER: Mapping[str, Any] = {
    "factor": 4,
    "form": FormName.STRIDES,
    "axis": "width",
    "pad_channels": 8,
    "layout": Layout.NHWC,
    "nonfinite": NonFinite.REFUSE,
    "companions": (Companion.PRELU,),
    "nodes": ("a",),
    "skip": ("a",),
    "input_shapes": {"x": (1,)},
    "store": Path("s"),
    "target": "a100",
    "effort": Effort.QUICK,
    "time_budget": 1.0,
    "inputs": ("a",),
    "values": {"a": (1.0,)},
    "cases": ({"a": (1.0,)},),
    "index_limits": {"a": 3},
    "weight_extents": {"channels": 3},
}


def stored(fold: Mapping[str, Any], search: Mapping[str, Any]) -> tuple[str, ...]:
    """The key of a form that is measured with these options."""
    options = SearchOptions(**{"provider": Provider.CPU, **search})
    with Store(None) as store:
        bench = Bench(RaceOptions.at(Level.ALL, options), store, "machine")
        key = bench._key("subject", "form")
    return msgspec.structs.astuple(key)


@pytest.mark.parametrize(
    ("kind", "keyed", "alone"),
    [(SearchOptions, SETTING, SEARCH_ALONE), (FoldOptions, FOLDING, FOLD_ALONE)],
)
def test_every_option_is_in_the_key_or_has_a_reason(
    kind: type, keyed: Mapping[str, Any], alone: Mapping[str, str]
) -> None:
    assert not keyed.keys() & alone.keys()
    plain = kind(provider=Provider.CPU) if kind is SearchOptions else kind()
    for field in dataclasses.fields(kind):
        assert field.name in {*keyed, *alone}, f"{field.name}: in the key, or give a reason"
        new = {**OTHER, **keyed}.get(field.name, changed(getattr(plain, field.name)))
        assert new not in (None, getattr(plain, field.name)), field.name
        options_pair = ({}, {field.name: new}) if kind is SearchOptions else ({field.name: new}, {})
        assert (stored(*options_pair) != stored({}, {})) == (field.name in keyed), field.name
