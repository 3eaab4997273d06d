"""The models that faults are planted in: one Conv between other nodes, folded in every form.

Extents and channels are distinct and mostly prime, weights are random: no two channels, taps or
positions can be confused unnoticed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from widthfold_onnx import AxisName, FoldOptions, Layout
from widthfold_onnx.model.graph import Document
from widthfold_onnx.plan.decisions import plan
from widthfold_onnx.rewrite.engine import Engine
from widthfold_onnx.rules.base import Reformulation
from widthfold_onnx.rules.conv import reformulate
from widthfold_onnx.rules.forms import candidates


@dataclass(frozen=True, kw_only=True, eq=False)
class Base:
    """A Conv and how it is folded; of two `sites` the second reads x, and they are subtracted."""

    shape: tuple[int | str, ...]
    weight: tuple[int, ...]
    options: FoldOptions
    attributes: dict[str, Any] = field(default_factory=dict)
    bias: bool = True
    opset: int = 17
    dtype: type[np.floating[Any]] = np.float32
    scale: float = 1.0
    dense: bool = False
    sites: int = 1
    seed: int = 0


def fold(factor: int, axis: AxisName | int = AxisName.AUTO, **others: Any) -> FoldOptions:
    limits = {"max_flops_growth": 1e9, "max_bytes_growth": 1e9}
    return FoldOptions(factor=factor, axis=axis, **limits, **others)


H, W, N = AxisName.HEIGHT, AxisName.WIDTH, AxisName.BATCH

BASES = {
    "line": Base(
        shape=(2, 3, 20), weight=(5, 3, 4), options=fold(4, W), attributes={"pads": [2, 1]}
    ),
    "line_no_bias": Base(
        shape=(1, 2, 15), weight=(3, 2, 4), options=fold(3), attributes={"pads": [0, 3]}, bias=False
    ),
    "stride": Base(
        shape=(1, 2, 24),
        weight=(3, 2, 5),
        options=fold(4, W),
        attributes={"pads": [2, 2], "strides": [2]},
    ),
    "dilation": Base(
        shape=(1, 2, 18),
        weight=(5, 2, 3),
        options=fold(3, W),
        attributes={"pads": [2, 4], "dilations": [3]},
    ),
    "same_upper": Base(
        shape=(1, 2, 12),
        weight=(3, 2, 4),
        options=fold(3, W),
        attributes={"auto_pad": "SAME_UPPER", "strides": [2]},
    ),
    "whole_axis": Base(
        shape=(3, 2, 7), weight=(5, 2, 3), options=fold(7, W), attributes={"pads": [1, 1]}
    ),
    "groups": Base(
        shape=(1, 6, 20),
        weight=(9, 2, 3),
        options=fold(4, W),
        attributes={"pads": [1, 1], "group": 3},
    ),
    "ragged": Base(
        shape=(1, 2, 13),
        weight=(3, 2, 3),
        options=fold(4, W, ragged=True),
        attributes={"pads": [1, 1]},
    ),
    "ragged_opset_9": Base(
        shape=(1, 2, 7, 5),
        weight=(3, 2, 3, 2),
        options=fold(3, H, ragged=True),
        attributes={"pads": [1, 0, 1, 1]},
        opset=9,
    ),
    "height": Base(
        shape=(1, 2, 10, 7),
        weight=(3, 2, 3, 3),
        options=fold(5, H),
        attributes={"pads": [1, 1, 1, 1]},
    ),
    "width_uneven_pads": Base(
        shape=(1, 3, 5, 12),
        weight=(2, 3, 3, 4),
        options=fold(4, W),
        attributes={"pads": [0, 2, 2, 1]},
    ),
    "blocked": Base(shape=(1, 3, 8, 5), weight=(5, 3, 1, 1), options=fold(4, H)),
    "blocked_width": Base(shape=(1, 3, 5, 8), weight=(5, 3, 2, 1), options=fold(4, W), bias=False),
    "depthwise": Base(
        shape=(1, 5, 4, 9),
        weight=(5, 1, 3, 3),
        options=fold(3, W),
        attributes={"pads": [1, 1, 1, 1], "group": 5},
    ),
    "batch": Base(
        shape=(6, 2, 5, 7),
        weight=(3, 2, 3, 3),
        options=fold(3, N),
        attributes={"pads": [1, 0, 1, 2]},
    ),
    "batch_dense": Base(
        shape=(6, 2, 5, 4),
        weight=(3, 2, 3, 2),
        options=fold(2, N, mix_samples=True),
        attributes={"pads": [1, 0, 1, 1]},
        dense=True,
    ),
    "channels_last": Base(
        shape=(1, 3, 5, 8),
        weight=(5, 3, 3, 3),
        options=fold(4, W, layout=Layout.NHWC),
        attributes={"pads": [1, 1, 1, 1]},
    ),
    "groups_channels_last": Base(
        shape=(1, 6, 15),
        weight=(4, 3, 4),
        options=fold(3, W, layout=Layout.NHWC),
        attributes={"pads": [1, 2], "group": 2},
    ),
    "two_axes": Base(
        shape=(1, 2, 6, 10),
        weight=(3, 2, 3, 2),
        options=fold(4),
        attributes={"pads": [1, 0, 1, 1]},
    ),
    "batch_and_width": Base(
        shape=(2, 3, 10), weight=(5, 3, 3), options=fold(4), attributes={"pads": [0, 2]}
    ),
    "open_extents": Base(
        shape=("n", 2, 8, "w"),
        weight=(3, 2, 3, 3),
        options=fold(4, H),
        attributes={"pads": [1, 1, 1, 0]},
    ),
    "volume": Base(
        shape=(1, 2, 4, 5, 3),
        weight=(3, 2, 3, 1, 2),
        options=fold(2, 2),
        attributes={"pads": [1, 0, 0, 1, 0, 1]},
    ),
    "half": Base(
        shape=(1, 2, 12),
        weight=(3, 2, 3),
        options=fold(4, W),
        attributes={"pads": [1, 1]},
        dtype=np.float16,
    ),
    "tiny_weights": Base(
        shape=(1, 2, 12),
        weight=(5, 2, 3),
        options=fold(4, W),
        attributes={"pads": [2, 0]},
        scale=1e-5,
    ),
    "one_channel": Base(
        shape=(2, 1, 16),
        weight=(1, 1, 5),
        options=fold(8, W),
        attributes={"pads": [2, 2]},
    ),
    "pair": Base(
        shape=(1, 2, 12),
        weight=(3, 2, 3),
        options=fold(4, W),
        attributes={"pads": [1, 1]},
        sites=2,
    ),
}


def original(base: Base) -> onnx.ModelProto:
    """x -> Tanh -> Conv -> Asinh -> y; no fold is carried through an Asinh."""
    rng = np.random.default_rng(base.seed)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(base.dtype))
    nodes, constants = [helper.make_node("Tanh", ["x"], ["z"], "first")], []
    for i in range(base.sites):
        arrays = {f"w{i}": rng.standard_normal(base.weight)}
        if base.bias:
            arrays[f"b{i}"] = rng.standard_normal(base.weight[0])
        constants += [
            numpy_helper.from_array((array * base.scale).astype(base.dtype), name)
            for name, array in arrays.items()
        ]
        nodes.append(
            helper.make_node("Conv", ["zx"[i], *arrays], [f"c{i}"], f"conv{i}", **base.attributes)
        )
    if base.sites == 1:
        nodes.append(helper.make_node("Asinh", ["c0"], ["y"], "last"))
    else:
        nodes += [helper.make_node("Asinh", [f"c{i}"], [f"a{i}"]) for i in range(base.sites)]
        nodes.append(helper.make_node("Sub", ["a0", "a1"], ["y"], "last"))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, base.shape)],
        [helper.make_tensor_value_info("y", kind, [None] * len(base.shape))],
        constants,
    )
    opset = helper.make_opsetid("", base.opset)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8)


def folded(base: Base, model: onnx.ModelProto | None = None) -> onnx.ModelProto:
    """A model, by default the original, with every Conv folded as the base says."""
    document = Document(original(base) if model is None else model, None)
    engine, count = Engine(document), 0
    factor = base.options.factor
    assert factor is not None
    choose = partial(reformulate, options=base.options, factor=factor)
    for decision in plan(document, base.options, choose):
        if decision.conv is None:
            continue
        outcome = decision.outcome
        if base.dense:
            outcomes = [r for _, r in candidates(decision.conv, base.options, factor)]
            outcome = next(r for r in outcomes if isinstance(r, Reformulation) and r.fold.dense)
        assert isinstance(outcome, Reformulation), outcome
        engine.apply(decision.conv, outcome)
        count += 1
    assert count == base.sites
    engine.finish()
    return document.finish()
