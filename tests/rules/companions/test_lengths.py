"""Open extents, and bounds that a model computes from them, are what the runtime finds."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from tests.running import run
from widthfold_onnx.model.document import Document, Node, Value
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.rules.companions.lengths import Length, Lengths, Trim, conv_axes, trims

SIZES = (13, 29, 47)


def net(body: str, **constants: object) -> onnx.ModelProto:
    """A net of float x [1, 3, N] and its output y of rank 3; w is a weight of 7 taps."""
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
    net (float[1,3,N] x) => (float[A,B,C] y) {{ {body} }}""")
    weight = np.ones((5, 3, 7), np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    for name, value in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(np.array(value, np.int64), name))
    return model


def opened(model: onnx.ModelProto, name: str = "y") -> tuple[Lengths, Value, Node]:
    """The lengths of a net, and a value with the node that makes it."""
    document = Document(model, None, OPERATORS)
    node = next(node for node in document.main if name in [v.name for v in node.outputs])
    (value,) = (v for v in node.outputs if v.name == name)
    return Lengths.around(document, node), value, node


def at(length: Length, size: int) -> int:
    return length.times * size + length.offset


@pytest.mark.parametrize(
    ("body", "times", "offset"),
    [
        ("y = Relu (x)", 1, 0),
        ("y = Conv <pads = [2, 3]> (x, w)", 1, -1),
        ("y = Conv <dilations = [2]> (x, w)", 1, -12),
        ("a = Conv <pads = [6, 6]> (x, w)  y = Slice (a, begin, end, last)", 1, 6 - 3 - 2),
        ("y = ConvTranspose <strides = [2], pads = [1, 1]> (x, v)", 2, 2),
        ("a = Relu (x)  b = Sigmoid (x)  y = Mul (a, b)", 1, 0),
        ("a = Mul (x, scale)  y = Conv (a, w)", 1, -6),
        ("y = PRelu (x, scale)", 1, 0),
        ("a = Less (x, scale)  y = Where (a, x, scale)", 1, 0),
    ],
)
def test_an_open_extent_is_that_of_the_runtime_at_every_size(
    body: str, times: int, offset: int
) -> None:
    model = net(body, begin=[3], end=[-2], last=[2])
    for name, shape in (("v", (3, 5, 6)), ("scale", (3, 1))):
        array = np.ones(shape, np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    lengths, value, _ = opened(model)
    length = lengths.of(value, 2)
    assert (length.root.name, length.axis, length.times, length.offset) == ("x", 2, times, offset)
    for size in SIZES:
        (y,) = run(model, np.ones((1, 3, size), np.float32))
        assert y.shape[2] == at(length, size)


@pytest.mark.parametrize(
    "body",
    [
        "y = Conv <strides = [3]> (x, w)",  # rounds down: no multiple of the size
        "y = Transpose <perm = [0, 2, 1]> (x)",
        "a = Conv (x, w)  y = Slice (a, begin, end, last)",  # leaves nothing of a short extent
        "r = NonZero (x)  f = Cast <to = 1> (r)  y = Unsqueeze (f, zero)",
    ],
)
def test_an_extent_that_is_not_followed_is_a_root_of_its_own(body: str) -> None:
    lengths, value, _ = opened(net(body, zero=[0], begin=[3], end=[-2], last=[2]))
    axis = 1 if "Transpose" in body else 2
    assert lengths.of(value, axis) == Length(value, axis, 1)


def test_extents_of_one_root_have_a_difference_and_others_none() -> None:
    lengths, value, node = opened(net("a = Conv (x, w)  y = Relu (a)"))
    x = node.inputs[0].producer().inputs[0]
    grown, own = lengths.of(value, 2), lengths.of(x, 2)
    assert (own.minus(grown), grown.minus(own)) == (6, -6)
    assert Length(offset=8).minus(Length(offset=5)) == 3
    assert own.minus(Length(offset=5)) is None
    assert own.minus(Length(x, 2, 2)) is None
    assert (own.least, grown.least) == (1, -5)


@pytest.mark.parametrize(
    ("vector", "expected"),
    [
        ("s = Shape (x)  v = Identity (s)", [(0, 1), (0, 3), (1, 0)]),
        ("s = Shape <start = 1> (x)  v = Identity (s)", [(0, 3), (1, 0)]),
        ("s = Shape (x)  v = Gather (s, picked)", [(1, 0), (0, 1)]),
        ("s = Shape (x)  g = Gather (s, picked)  v = Sub (g, five)", [(1, -5), (0, -4)]),
        ("s = Shape (x)  v = Slice (s, one, three)", [(0, 3), (1, 0)]),
        ("s = Shape (x)  v = Concat <axis = 0> (five, s)", [(0, 5), (0, 1), (0, 3), (1, 0)]),
        ("s = Shape (x)  h = Cast <to = 6> (s)  v = Cast <to = 7> (h)", [(0, 1), (0, 3), (1, 0)]),
    ],
)
def test_an_element_of_a_computed_vector_is_that_of_the_runtime(
    vector: str, expected: list[tuple[int, int]]
) -> None:
    constants = {"picked": [-1, 0], "five": [5], "one": [1], "three": [3]}
    model = net(f"y = Relu (x)  {vector}", **constants)
    lengths, value, _ = opened(model, "v")
    elements = [lengths.element(value, index) for index in range(len(expected))]
    assert [(each.times, each.offset) for each in elements] == expected
    model.graph.output.append(onnx.helper.make_tensor_value_info("v", 7, [None]))
    for size in SIZES:
        _, v = run(model, np.ones((1, 3, size), np.float32))
        assert v.tolist() == [at(each, size) for each in elements]


def test_numbers_of_the_data_are_no_element() -> None:
    lengths, value, _ = opened(
        net("f = Cast <to = 7> (x)  v = Reshape (f, flat)  y = Relu (x)", flat=[-1]), "v"
    )
    assert lengths.element(value, 0) is None


@pytest.mark.parametrize(
    ("start", "end", "trim"),
    [
        (0, 1 << 62, Trim(0, 0)),
        (4, 1 << 62, Trim(4, 0)),
        (0, -5, Trim(0, 5)),
        (2, -3, Trim(2, 3)),
        (0, 9, None),  # how much that takes away depends on the size
        (-9, 1 << 62, None),
    ],
)
def test_a_slice_takes_away_what_the_runtime_leaves_out(
    start: int, end: int, trim: Trim | None
) -> None:
    model = net("y = Slice (x, start, end, axes)", start=[start], end=[end], axes=[-1])
    lengths, _, node = opened(model)
    assert trims(lengths, node) == {2: trim}
    for size in SIZES if trim is not None else ():
        x = np.arange(3 * size, dtype=np.float32).reshape(1, 3, size)
        (y,) = run(model, x)
        np.testing.assert_array_equal(y, x[:, :, trim.begin : size - trim.end])


def test_a_slice_up_to_an_extent_takes_the_difference_away() -> None:
    model = net(
        "a = Conv <pads = [6, 6]> (x, w)  s = Shape (x)  n = Gather (s, last)"
        "  y = Slice (a, zero, n, last)",
        last=[2],
        zero=[0],
    )
    lengths, _, node = opened(model)
    assert trims(lengths, node) == {2: Trim(0, 6)}
    for size in SIZES:
        assert run(model, np.ones((1, 3, size), np.float32))[0].shape == (1, 5, size)


@pytest.mark.parametrize("step", [2, -1])
def test_a_slice_of_other_steps_is_not_followed(step: int) -> None:
    model = net(
        "y = Slice (x, start, end, axes, steps)", start=[0], end=[9], axes=[2], steps=[step]
    )
    lengths, _, node = opened(model)
    assert trims(lengths, node) is None


def test_the_axes_of_a_conv_have_its_geometry_and_a_conv_that_cannot_run_has_none() -> None:
    lengths, _, node = opened(net("y = Conv <pads = [2, 3], dilations = [2]> (x, w)"))
    ((axis),) = conv_axes(lengths, node)
    assert (axis.kernel, axis.dilation, axis.pad_begin, axis.pad_end) == (7, 2, 2, 3)
    other = net("y = Conv (x, w)")
    other.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones((5, 3, 7, 1), "f"), "w"))
    lengths, _, node = opened(other)
    assert conv_axes(lengths, node) is None
