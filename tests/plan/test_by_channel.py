"""Which Convs of a model are tried channel by channel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.plan.tool import conv
from tests.rewrite.channels import builder
from widthfold_onnx import AxisName, FoldOptions
from widthfold_onnx.model.graph import Document
from widthfold_onnx.plan.by_channel import candidates
from widthfold_onnx.plan.decisions import read_sites
from widthfold_onnx.rewrite.record import CHANNEL_KEY


def offered(model: onnx.ModelProto, **options: object) -> dict[str, str]:
    fold, document = FoldOptions(**options), Document(model, None)
    return candidates(document, read_sites(document, fold), fold)


def layer(batch: int | str = 8, weight: Sequence[int] = (2, 3, 3, 3), **more) -> onnx.ModelProto:
    return conv((batch, weight[1], 7, 11), weight, **more)


@pytest.mark.parametrize(
    "options", [{}, {"axis": AxisName.BATCH}, {"axis": 0}, {"ragged": True}, {"mix_samples": True}]
)
def test_a_small_conv_of_many_samples(options: dict[str, object]) -> None:
    assert offered(layer(), **options) == {"y": "conv"}


@pytest.mark.parametrize(
    "options",
    [
        {"axis": AxisName.HEIGHT},
        {"axis": AxisName.WIDTH},
        {"axis": 2},
        {"nodes": ("conv",)},
        {"nodes": ("*",)},
        {"skip": ("conv",)},
    ],
)
def test_not_where_something_else_was_asked_for(options: dict[str, object]) -> None:
    assert offered(layer(), **options) == {}


def test_not_what_says_that_it_was_written_so() -> None:
    model = layer()
    (node,) = (node for node in model.graph.node if node.op_type == "Conv")
    node.metadata_props.add(key=CHANNEL_KEY, value="y")
    assert offered(model) == {}


def test_not_where_folds_are_guarded() -> None:
    assert offered(layer(), guard_shapes=True) == {}


@pytest.mark.parametrize(("batch", "fits"), [(1, 0), (4, 0), (12, 0), (16, 1), (24, 1), ("N", 0)])
def test_the_batch_must_fill_vectors(batch: int | str, fits: int) -> None:
    assert len(offered(layer(batch))) == fits


def test_an_open_batch_may_be_assumed() -> None:
    assert offered(layer("N"), input_shapes={"x": (8, 3, 7, 11)}) == {"y": "conv"}


@pytest.mark.parametrize(("kind", "fits"), [(np.float16, 0), (np.float32, 1), (np.float64, 1)])
def test_not_in_half_precision(kind: type, fits: int) -> None:
    assert len(offered(layer(dtype=kind))) == fits


@pytest.mark.parametrize(
    ("weight", "fits"),
    [((1, 1, 3, 3), 0), ((1, 2, 3, 3), 1), ((2, 1, 3, 3), 1), ((8, 8, 3, 3), 1), ((9, 8, 3, 3), 0)],
)
def test_not_what_has_one_channel_or_many(weight: Sequence[int], fits: int) -> None:
    assert len(offered(layer(weight=weight))) == fits


def test_not_a_transposed_conv_and_not_in_a_body() -> None:
    assert offered(layer(weight=(3, 3, 3, 3), op="ConvTranspose")) == {}
    model, inner = layer(), layer()
    body = inner.graph
    outer = model.graph
    del outer.node[:]
    names = {"y": "inside", "w": "w_inside", "b": "b_inside"}
    for node in body.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = ["inside"]
    for tensor in body.initializer:
        tensor.name = names[tensor.name]
    del body.input[:]
    body.output[0].name = "inside"
    other = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["same"])],
        "other",
        [],
        [helper.make_tensor_value_info("same", TensorProto.FLOAT, None)],
    )
    outer.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    outer.node.append(
        helper.make_node("If", ["c"], ["y"], "if", then_branch=body, else_branch=other)
    )
    assert offered(model) == {}


def test_convs_without_a_name_are_called_by_what_they_return() -> None:
    g = builder(8, 3, 7, 11)
    model = g.model([g.conv(g.conv("x", 2, [3, 3]), 1, [1, 3])])
    model.graph.node[1].name = ""
    assert offered(model) == {"v0": "conv0", "v1": "Conv -> v1"}
