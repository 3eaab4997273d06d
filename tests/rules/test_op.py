"""Ops that rules read: their constants, pads and sizes, as input or attribute."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper, parser

from widthfold_onnx.model.document import Document
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.op import (
    PADS_OPSET,
    SIZES,
    Op,
    as_inputs,
    constant_problem,
    rule_problem,
    statistics_problem,
)


def op(text: str, opset: int = 18, **constants: object) -> Op:
    """The last node of a graph that reads x [2, 3, 5, 7], c and constants."""
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : {opset}]>
    g (float[2,3,5,7] x, int64[k] c) => (y) {{ {text} }}""")
    for name, numbers in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(numbers), name))
    document = Document(model, None, OPERATORS)
    node = list(document.main)[-1]
    return Op(document, node, tuple(None for _ in node.inputs))


PADS = [0, 0, 1, 2, 0, 0, 3, 4]


def test_pads_are_an_input_or_an_attribute() -> None:
    new, old = op("y = Pad (x, p)", p=PADS), op(f"y = Pad <pads = {PADS}> (x)", opset=10)
    assert new.pads(4) == old.pads(4) == PADS
    constants, attributes = new.with_pads([0] * 8)
    assert (list(constants), attributes) == ([1], {})
    assert constants[1].dtype == np.int64
    assert old.with_pads([0] * 8) == ({}, {"pads": [0] * 8})


@pytest.mark.parametrize(
    ("padded", "code"),
    [
        (op("y = Pad (x, c)"), Code.NOT_CONSTANT),
        (op("y = Pad (x, p)", p=PADS[1:]), Code.INCONSISTENT_ATTRIBUTES),
        (op("y = Pad (x)", opset=10), Code.INCONSISTENT_ATTRIBUTES),
        (op("y = Pad (x, p, , a)", p=[1, 1], a=[3]), Code.NOT_CARRIED),
    ],
)
def test_pads_that_are_not_known_are_refused(padded: Op, code: Code) -> None:
    pads = padded.pads(4)
    assert isinstance(pads, Refusal)
    assert pads.code == code


def test_numbers_that_are_left_out_are_none() -> None:
    assert op("y = Slice (x, s, e)", s=[1], e=[2]).numbers(3, "axes") is None
    assert op("y = Slice (x, s, e, a)", s=[1], e=[2], a=[3]).numbers(3, "axes") == [3]
    assert op("y = Slice <axes = [2], starts = [0], ends = [1]> (x)", opset=9).numbers(
        3, "axes"
    ) == [2]


def test_a_split_has_equal_parts_or_those_that_it_names() -> None:
    assert op("y, z = Split <axis = 2, num_outputs = 2> (x)").split_sizes(5) == [3, 2]
    assert op("y, z = Split (x, s)", s=[1, 4]).split_sizes(5) == [1, 4]
    assert op("y, z = Split <split = [1, 4]> (x)", opset=11).split_sizes(5) == [1, 4]


@pytest.mark.parametrize("sizes", [[1, 3], [5], [0, 5], [1, 2, 2]])
def test_a_split_that_leaves_channels_out_or_a_part_empty_is_refused(sizes: list[int]) -> None:
    result = op("y, z = Split (x, s)", s=sizes).split_sizes(5)
    assert result == Refusal(Code.UNEVEN_PARTS, "5 channels are split into 2 parts")


def test_a_resize_is_given_scales_or_sizes() -> None:
    scaled = op("y = Resize (x, , s)", s=np.array([1, 1, 2, 2], np.float32)).scales_or_sizes()
    sized = op("y = Resize (x, , , s)", s=[2, 3, 10, 14]).scales_or_sizes()
    assert not isinstance(scaled, Refusal)
    assert (scaled[0], scaled[1].tolist()) == (2, [1, 1, 2, 2])
    assert not isinstance(sized, Refusal)
    assert (sized[0], sized[1].tolist()) == (SIZES, [2, 3, 10, 14])


@pytest.mark.parametrize(
    "attributes",
    [
        'coordinate_transformation_mode = "tf_crop_and_resize"',
        'keep_aspect_ratio_policy = "not_larger"',
        "axes = [2, 3]",
    ],
)
def test_a_resize_of_other_meaning_is_refused(attributes: str) -> None:
    result = op(f"y = Resize <{attributes}> (x, , , s)", s=[10, 14]).scales_or_sizes()
    assert isinstance(result, Refusal)
    assert result.code == Code.NOT_CARRIED


def test_numbers_become_inputs_where_the_operator_set_has_them() -> None:
    vectors = {"pads": [1, 2]}
    for opset in (PADS_OPSET - 1, PADS_OPSET, PADS_OPSET + 1):
        document = op("y = Relu (x)", opset=opset).document
        is_new = opset >= PADS_OPSET
        assert as_inputs(document, PADS_OPSET, vectors) == (
            (vectors, {}) if is_new else ({}, vectors)
        )


@pytest.mark.parametrize("extents", [(), (1,), (7,), (5, 1), (3, 1, 1), (1, 3, 1, 1), (2, 3, 1, 1)])
@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (3, 3, 3, 3)])
def test_a_constant_may_vary_along_the_channels_alone(
    extents: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    """A number for each element says along which axes a constant varies."""
    constant = np.arange(np.prod(extents, dtype=int)).reshape(extents)
    fits = all(a in (1, b) for a, b in zip(extents[::-1], shape[::-1], strict=False))
    spread = np.broadcast_to(constant, shape) if fits else None
    is_of_channels = spread is not None and (spread == spread[:1, :, :1, :1]).all()
    assert (constant_problem(extents, 4, 1, shape[1]) is None) == is_of_channels


def test_a_constant_of_more_axes_or_other_channels_is_refused() -> None:
    assert constant_problem((1, 1, 3, 1, 1), 4, 1, 3) is not None
    assert constant_problem((4, 1, 1), 4, 1, 3) is not None
    assert constant_problem((4, 1, 1), 4, 1, None) is not None


def test_an_operator_without_a_rule_is_refused() -> None:
    table = ("Relu", "Pad")
    assert rule_problem(op("y = Relu (x)"), table, "no rule pads {}") is None
    unknown = rule_problem(op("y = Neg (x)"), table, "no rule pads {}")
    assert unknown == Refusal(Code.NOT_CARRIED, "no rule pads Neg")
    old = rule_problem(op("y = Relu (x)", opset=6), table, "no rule pads {}")
    assert old == Refusal(Code.OPSET_TOO_OLD, "opset 6 is below 7")
    other = op("y = Relu (x)")
    other.node.domain = "elsewhere"
    assert rule_problem(other, table, "no rule pads {}") is not None


def test_a_flag_of_another_number_is_refused() -> None:
    """ONNX does not say what it means, and ONNX Runtime takes it now for 0, now for 1."""
    for number, problem in ((0, None), (1, None), (2, "transB is 2, neither 0 nor 1")):
        found = rule_problem(op(f"y = Gemm <transB = {number}> (x, c)"), ("Gemm",), "")
        refusal = None if problem is None else Refusal(Code.INCONSISTENT_ATTRIBUTES, problem)
        assert found == refusal


@pytest.mark.parametrize(
    ("attributes", "opset", "is_refused"),
    [("", 15, False), ("<training_mode = 1>", 15, True), ("<spatial = 0>", 8, True)],
)
def test_statistics_are_constants_per_channel(
    attributes: str, opset: int, is_refused: bool
) -> None:
    node = op(
        f"y = BatchNormalization {attributes} (x, s, b, m, v)",
        opset=opset,
        **{name: np.ones(3, np.float32) for name in "sbmv"},
    ).node
    assert (statistics_problem(node) is not None) == is_refused
