"""A model that faults are planted in: one Conv or ConvTranspose between others, and its fold."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.folding import read, rewriting
from widthfold_onnx.algebra.channels import Grouping
from widthfold_onnx.options import AxisName, FoldOptions
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.enumeration import conv_forms, forms_at_factor
from widthfold_onnx.rules.form import Answer, Form
from widthfold_onnx.rules.layers import Layer
from widthfold_onnx.rules.selection import preferred_form


@dataclass(frozen=True, kw_only=True, eq=False)
class Base:
    """A node and how it is folded; of two `sites` the second reads x, and they are subtracted.

    With no factor, strides are folded, as the options ask for, or channels are regrouped, or of
    every spatial axis so many positions of the output `alone`. The weight is zero outside of so
    many `blocks` of channels. With `computed` the model stores the weight transposed and the bias
    in half the bits.
    """

    shape: tuple[int | str, ...]
    weight: tuple[int, ...]
    options: FoldOptions
    attributes: dict[str, Any] = field(default_factory=dict)
    bias: bool = True
    opset: int = 17
    dtype: type[np.floating[Any]] = np.float32
    scale: float = 1.0
    dense: bool = False
    grouping: Grouping | None = None
    alone: tuple[int, ...] = ()
    blocks: int = 1
    sites: int = 1
    computed: bool = False
    op: str = "Conv"
    seed: int = 0

    @property
    def outputs(self) -> int:
        """Output channels."""
        transposed = self.op == "ConvTranspose"
        return self.weight[1] * self.attributes.get("group", 1) if transposed else self.weight[0]


def fold(factor: int | None, axis: AxisName | int = AxisName.AUTO, **others: Any) -> FoldOptions:
    limits = {"max_flops_growth": 1e9, "max_bytes_growth": 1e9}
    return FoldOptions(factor=factor, axis=axis, **limits, **others)


def original(base: Base) -> onnx.ModelProto:
    """x -> Tanh -> node -> Asinh -> y; no fold is carried through an Asinh."""
    rng = np.random.default_rng(base.seed)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(base.dtype))
    nodes, constants = [helper.make_node("Tanh", ["x"], ["z"], "first")], []
    for i in range(base.sites):
        arrays = {f"w{i}": rng.standard_normal(base.weight)}
        if base.blocks > 1:
            sizes = [n // base.blocks for n in base.weight[:2]]
            arrays[f"w{i}"][np.kron(np.eye(base.blocks), np.ones(sizes)) == 0] = 0
        if base.bias:
            arrays[f"b{i}"] = rng.standard_normal(base.outputs)
        names = list(arrays)
        stored = {name: (array * base.scale).astype(base.dtype) for name, array in arrays.items()}
        if base.computed:
            stored = {"t": stored["w0"].T, "half": stored["b0"].astype(np.float16)}
            nodes.append(helper.make_node("Transpose", ["t"], ["w0"]))
            nodes.append(helper.make_node("Cast", ["half"], ["b0"], to=kind))
        constants += [numpy_helper.from_array(array, name) for name, array in stored.items()]
        nodes.append(
            helper.make_node(base.op, ["zx"[i], *names], [f"c{i}"], f"conv{i}", **base.attributes)
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
    """A model, by default the original, with every node folded as the base says."""
    reading = read(original(base) if model is None else model, base.options)
    prepared = rewriting(reading, base.options, partial(chosen, base))
    assert sum(map(len, prepared.forms.values())) == base.sites
    return prepared.carry_out()


def chosen(base: Base, layer: Layer) -> Answer:
    """The form that the base says, or the cheapest."""
    if base.options.factor is not None and not base.dense:
        return preferred_form(layer, base.options)
    if base.grouping is not None:
        unfolded = (1,) * len(base.shape[1:])
        answers = conv_forms(layer, base.options, unfolded, grouping=base.grouping)
    elif base.alone:
        answers = conv_forms(layer, base.options, (1, *base.alone), one_sided=True)
    else:
        answers = forms_at_factor(layer, base.options)
    legal = [form for _, form in answers if isinstance(form, Form)]
    if base.alone:
        legal = [form for form in legal if form.spec.kind in ("sub-pixel", "sub-pixel+sub-pixel")]
    forms = (form for form in legal if form.fold.dense == base.dense)
    return next(forms, Refusal(Code.NO_GAIN, "no form"))
