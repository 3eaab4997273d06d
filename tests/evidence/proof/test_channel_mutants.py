"""Faults in a model that was written channel by channel: all that change it are found.

What counts as changed is decided by onnx's reference implementation (`mutants.judge`).
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.evidence.mutants.judge import Judgement
from tests.evidence.mutants.mutant import Mutant, check, check_right, content
from tests.evidence.proof.test_by_channel import net
from tests.rewrite.channels import by_channel

Fault = Callable[[onnx.ModelProto], object]

ORIGINAL = net()
WRITTEN = by_channel(ORIGINAL)


def find(model: onnx.ModelProto, name: str) -> onnx.NodeProto:
    (node,) = (node for node in model.graph.node if node.name == name)
    return node


def named(op: str, of: str, channel: int | None, which: int = 0) -> str:
    """The name of a node by what it says that it helps to compute; None: it joins or splits."""
    part = "channels" if channel is None else f"channel_{channel}"
    found = [
        node.name
        for node in WRITTEN.graph.node
        if node.op_type == op and [e.value for e in node.metadata_props] == [of]
        if re.fullmatch(rf".*/{part}(_\d+)?", node.name)
    ]
    return found[which]


FIRST, SECOND = "conv2/channel_1_of_0", "conv2/channel_1_of_1"
"""The summands of channel 1 of the second Conv; the first one holds the bias."""

OTHER = "conv2/channel_0_of_0"
SUM = named("Add", "v2", 1)
CLIP, SLOPE, SUB, MUL = (
    named(op, of, 1) for op, of in (("Clip", "v1"), ("PRelu", "v3"), ("Sub", "v4"), ("Mul", "v5"))
)
JOIN = named("Concat", "v5", None)
SPLIT = named("Split", "v7", None)


def numbers(name: str, index: int, change: Callable[[np.ndarray], np.ndarray]) -> Fault:
    """Let a node read another constant."""

    def fault(model: onnx.ModelProto) -> None:
        node = find(model, name)
        known = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        array = change(known[node.input[index]].copy())
        model.graph.initializer.append(numpy_helper.from_array(array, "another"))
        node.input[index] = "another"

    return fault


def reads(name: str, index: int, source: str, which: int = 0, *, given: bool = False) -> Fault:
    """Let a node read what another one returns, or what that one is given."""

    def fault(model: onnx.ModelProto) -> None:
        other = find(model, source)
        find(model, name).input[index] = (other.input if given else other.output)[which]

    return fault


def exchanged(name: str, first: int, second: int, *, outputs: bool = False) -> Fault:
    def fault(model: onnx.ModelProto) -> None:
        values = find(model, name).output if outputs else find(model, name).input
        values[first], values[second] = values[second], values[first]

    return fault


def attribute(name: str, key: str, value: object) -> Fault:
    def fault(model: onnx.ModelProto) -> None:
        node = find(model, name)
        kept = [item for item in node.attribute if item.name != key]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute(key, value)])

    return fault


def operator(name: str, op: str) -> Fault:
    def fault(model: onnx.ModelProto) -> None:
        find(model, name).op_type = op

    return fault


def without_bias(model: onnx.ModelProto) -> None:
    del find(model, FIRST).input[2]


def bias_twice(model: onnx.ModelProto) -> None:
    find(model, SECOND).input.append(find(model, FIRST).input[2])


def wider_part(model: onnx.ModelProto) -> None:
    """The Split gives a part of two channels."""
    sizes = numpy_helper.from_array(np.array([2, 1]), "sizes")
    model.graph.initializer.append(sizes)
    model.graph.node.insert(
        0, helper.make_node("Split", ["x", "sizes"], ["wide", "rest"], "wider", axis=1)
    )
    find(model, "conv0/channel_0_of_2").input[0] = "rest"


def inserted(op: str) -> Fault:
    """An op more between a channel and what reads it."""

    def fault(model: onnx.ModelProto) -> None:
        reader = find(model, SLOPE)
        extra = helper.make_node(op, [reader.input[0]], ["extra"], "extra")
        reader.input[0] = "extra"
        model.graph.node.insert(list(model.graph.node).index(reader), extra)

    return fault


def channel_read_elsewhere(model: onnx.ModelProto) -> None:
    model.graph.node.append(
        helper.make_node("Neg", [find(model, CLIP).output[0]], ["nowhere"], "neg")
    )


def channel_returned(model: onnx.ModelProto) -> None:
    """A graph output is one channel, as it is in the new model."""
    model.graph.output[0].name = find(model, CLIP).output[0]


def pool_of_a_channel(model: onnx.ModelProto) -> None:
    find(model, "maxpool6").input[0] = find(model, MUL).output[0]


def node_twice(model: onnx.ModelProto) -> None:
    """A Softmax of the same value, which nobody reads."""
    model.graph.node.append(helper.make_node("Softmax", ["x"], ["nobody"], "softmax"))


def other_opset_op(model: onnx.ModelProto) -> None:
    find(model, CLIP).domain = "com.example"


def two_outputs(model: onnx.ModelProto) -> None:
    find(model, SLOPE).output.append("second")


def axis_three(name: str) -> Fault:
    return attribute(name, "axis", 3)


FAULTS: dict[str, Fault] = {
    "weight.of_another_input": reads(FIRST, 1, SECOND, 1, given=True),
    "weight.of_another_output": reads(FIRST, 1, OTHER, 1, given=True),
    "weight.scaled": numbers(FIRST, 1, lambda w: w * 2),
    "weight.one_ulp": numbers(FIRST, 1, lambda w: np.nextafter(w, np.float32(9))),
    "weight.flipped": numbers(SECOND, 1, lambda w: w[..., ::-1].copy()),
    "weight.transposed": numbers("conv0/channel_1_of_2", 1, lambda w: w.swapaxes(-1, -2).copy()),
    "weight.two_outputs": numbers(FIRST, 1, lambda w: np.concatenate([w, w])),
    "bias.missing": without_bias,
    "bias.twice": bias_twice,
    "bias.of_another_channel": reads(FIRST, 2, OTHER, 2, given=True),
    "bias.one_ulp": numbers(FIRST, 2, lambda b: np.nextafter(b, np.float32(99))),
    "sum.without_a_summand": reads(SLOPE, 0, FIRST),
    "sum.with_one_twice": reads(SUM, 1, FIRST),
    "sum.with_a_product_twice": reads(named("Add", "v0", 1, 1), 1, "conv0/channel_1_of_1"),
    "sum.of_two_channels": reads(SUM, 1, OTHER),
    "sum.with_a_channel": reads(SUM, 1, CLIP),
    "sum.with_what_it_is_a_part_of": reads(SUM, 1, named("Add", "v2", 0)),
    "sum.subtracted": operator(SUM, "Sub"),
    "concat.order": exchanged(JOIN, 0, 1),
    "concat.one_twice": reads(JOIN, 1, named("Mul", "v5", 0)),
    "concat.axis": axis_three(JOIN),
    "concat.of_another_value": reads(JOIN, 1, SUB),
    "concat.one_missing": lambda model: find(model, JOIN).input.pop(),
    "split.order": exchanged(SPLIT, 0, 1, outputs=True),
    "split.axis": axis_three(SPLIT),
    "split.of_another_value": reads(SPLIT, 0, JOIN),
    "split.of_a_channel": reads(SPLIT, 0, CLIP),
    "split.sizes": wider_part,
    "conv.pads": attribute(FIRST, "pads", [0, 3, 0, 1]),
    "conv.no_pads": attribute(SECOND, "auto_pad", "VALID"),
    "conv.strides": attribute(FIRST, "strides", [1, 2]),
    "conv.dilations": attribute(FIRST, "dilations", [1, 2]),
    "conv.reads_another_channel": reads(SECOND, 0, FIRST, given=True),
    "conv.reads_another_value": reads(SECOND, 0, "conv0/channel_1_of_0"),
    "conv.reads_all_channels": reads("conv7/channel_0_of_0", 0, "maxpool6"),
    "op.another": operator("relu8/channel_1", "Abs"),
    "op.another_of_two": operator(SUB, "Max"),
    "op.turned": exchanged(SUB, 0, 1),
    "op.on_another_channel": reads(CLIP, 0, named("Clip", "v1", 0), given=True),
    "op.one_operand_of_another_channel": reads(SUB, 0, named("Clip", "v1", 0)),
    "op.one_operand_of_another_value": reads(SUB, 0, SUM),
    "op.of_part_of_a_sum": reads(SLOPE, 0, SECOND),
    "op.of_all_channels": reads("relu8/channel_1", 0, "maxpool6"),
    "op.attribute": attribute(CLIP, "widthfold", 1),
    "op.of_another_domain": other_opset_op,
    "op.more_outputs": two_outputs,
    "constant.another": numbers(MUL, 1, lambda c: c + 1),
    "constant.of_another_input": exchanged(CLIP, 1, 2),
    "constant.lost": lambda model: find(model, CLIP).input.pop(),
    "node.inserted": inserted("Neg"),
    "node.more": node_twice,
    "rest.reads_a_channel": pool_of_a_channel,
    "rest.reads_a_channel_beside": channel_read_elsewhere,
    "rest.returns_a_channel": channel_returned,
    "rest.attribute": attribute("maxpool6", "kernel_shape", [2, 1]),
    "rest.another_op": operator("maxpool6", "LpPool"),
}
SAME = {
    *("node.more", "rest.reads_a_channel_beside", "op.more_outputs", "split.sizes"),
}
"""Nodes that nobody reads, and a channel that is cut out in another way."""


def planted(name: str) -> onnx.ModelProto:
    model = onnx.ModelProto.FromString(WRITTEN.SerializeToString())
    FAULTS[name](model)
    assert content(model) != content(WRITTEN)
    return model


def test_what_is_written_channel_by_channel_is_equal() -> None:
    check_right(ORIGINAL, WRITTEN)


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str) -> None:
    verdict = check(Mutant("net", name, ORIGINAL, planted(name)), {})
    assert (verdict is Judgement.SAME) == (name in SAME)
