"""Between folded Convs nothing is converted that need not be."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import onnxruntime as ort  # noqa: TID251 - the tests look at the runtime's own graph
import pytest
from onnx import helper

from tests.rewrite.graphs import Builder, ops, run
from widthfold_onnx import AxisName, FoldOptions, Layout, fold_model
from widthfold_onnx.evidence.exact import probe_sites
from widthfold_onnx.options import Provider, VerifyOptions
from widthfold_onnx.rewrite.record import STATE_KEY

LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL")
MOVES = {"Reshape", "Transpose"}
REVERSED = ("Transpose", "Reshape")
WIDTH = FoldOptions(factor=4, axis=AxisName.WIDTH)


def builder(*shape: int | str) -> Builder:
    return Builder(list(shape or (2, 3, 7, 12)), np.random.default_rng(1))


def folded(model: onnx.ModelProto, options: FoldOptions = WIDTH, count: int = 1):
    """Fold; the result equals the original on integers, bit for bit, and a second run is idle."""
    before = model.SerializeToString()
    result, sites = fold_model(model, options)
    assert model.SerializeToString() == before
    assert sum(site.status == "folded" for site in sites) == count, sites
    onnx.checker.check_model(result, full_check=True)
    dims = [d.dim_value or 2 for d in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(0).integers(-3, 4, dims).astype(np.float32)
    for level in LEVELS:
        pairs = zip(run(model, x, level), run(result, x, level), strict=True)
        for wanted, actual in pairs:
            np.testing.assert_array_equal(actual, wanted)
    again, _ = fold_model(result, options)
    assert again.SerializeToString() == result.SerializeToString()
    assert proved(model, result) == ["exact"] * count
    return result


def proved(model: onnx.ModelProto, result: onnx.ModelProto) -> list[str]:
    with TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("a.onnx", "b.onnx")]
        for path, item in zip(paths, (model, result), strict=True):
            onnx.save(item, path)
        sites, _ = probe_sites(*paths, VerifyOptions(provider=Provider.CPU), lambda line: None)
    return [site.verdict for site in sites]


def conversions(model: onnx.ModelProto) -> int:
    """How many folds and unfolds there are: runs of moves."""
    kinds = [kind in MOVES for kind in ops(model)]
    return sum(here and not before for before, here in zip([False, *kinds], kinds, strict=False))


def optimized(model: onnx.ModelProto, level: str, folder: Path) -> list[str]:
    """What the runtime makes of a model before it runs it."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
    ort.InferenceSession(model.SerializeToString(), options)
    return ops(onnx.load(folder / "optimized.onnx"))


def four_convs() -> onnx.ModelProto:
    g = builder(1, 3, 16, 32)
    value = "x"
    for _ in range(4):
        value = g.op("Relu", g.conv(value, 3, [3, 3]))
    return g.model([value])


def test_a_chain_of_four_convs_is_folded_once_and_every_relu_still_fuses(tmp_path) -> None:
    result = folded(four_convs(), FoldOptions(factor=4), 4)
    assert [kind for kind in ops(result) if kind not in MOVES] == ["Conv", "Relu"] * 4
    assert conversions(result) == 2
    kinds = optimized(result, "EXTENDED", tmp_path)
    assert "Relu" not in kinds
    assert kinds.count("FusedConv") == 4


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        *(("Relu", {}), ("Abs", {}), ("Neg", {}), ("LeakyRelu", {"alpha": 0.5}), ("Floor", {})),
        *(("Identity", {}), ("Sign", {}), ("Round", {}), ("Cast", {"to": 1}), ("Ceil", {})),
        ("ThresholdedRelu", {"alpha": 2.0}),
    ],
)
def test_unary_ops_are_carried(op: str, attributes: dict) -> None:
    g = builder()
    value = g.conv(g.op(op, g.conv("x", 5, [1, 3]), **attributes), 2, [3, 3])
    result = folded(g.model([value]), count=2)
    assert conversions(result) == 2


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize(
    ("op", "shape"),
    [
        *(
            ("Add", (5, 1, 1)),
            ("Sub", (1, 5, 1, 1)),
            ("Mul", ()),
            ("Max", (1,)),
            ("Min", (5, 1, 1)),
        ),
        *(("PRelu", (5, 1, 1)), ("PRelu", (1,)), ("Mul", (1, 1, 1, 1))),
    ],
)
def test_constants_are_repeated_and_tiled(op: str, shape: tuple[int, ...], batch: bool) -> None:
    g = builder()
    value = g.op(op, g.conv("x", 5, [1, 3]), g.integers(*shape))
    value = g.conv(value, 2, [3, 3])
    options = FoldOptions(factor=2, axis=AxisName.BATCH) if batch else WIDTH
    assert conversions(folded(g.model([value]), options, 2)) == 2


def test_a_constant_on_the_left_stays_on_the_left() -> None:
    g = builder()
    value = g.conv("x", 5, [1, 3])
    result = folded(g.model([g.op("Sub", g.integers(5, 1, 1), value, channels=5)]))
    assert [kind for kind in ops(result) if kind not in MOVES] == ["Conv", "Sub"]
    assert conversions(result) == 2


@pytest.mark.parametrize("shape", [(12,), (7, 1), (5, 7, 1), (2, 5, 1, 1), (1, 5, 7, 12)])
def test_constants_that_differ_along_other_axes_are_not(shape: tuple[int, ...]) -> None:
    g = builder()
    value = g.op("Add", g.conv("x", 5, [1, 3]), g.integers(*shape))
    result = folded(g.model([value]))
    assert ops(result)[-2:] == ["Reshape", "Add"]
    assert result.graph.node[-1] == g.nodes[-1]


@pytest.mark.parametrize("opset", [7, 10, 13, 17, 22])
def test_the_common_ops_in_every_operator_set(opset: int) -> None:
    g = builder()
    value = g.conv("x", 4, [1, 3], group=1)
    ones = np.ones(4, np.float32)
    norm = [g.integers(4), g.integers(4), g.integers(4), ones * 4]
    value = g.op("BatchNormalization", value, *norm, epsilon=0.0)
    if opset < 11:
        value = g.op("Clip", value, min=-3.0, max=6.0)
    else:
        value = g.op("Clip", value, np.array(-3, np.float32), np.array(6, np.float32))
    value = g.op("PRelu", value, g.integers(4, 1, 1))
    skip = value
    value = g.conv(g.op("Relu", value), 4, [3, 3], group=2)
    value = g.op("Add", value, skip)
    result = folded(g.model([value], opset), count=2)
    assert conversions(result) == 2
    claiming = [any(p.key == STATE_KEY for p in node.metadata_props) for node in result.graph.node]
    assert sum(claiming) == 8


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize(
    ("opset", "per_channel"), [(10, False), (13, False), (13, True), (21, True)]
)
def test_quantized_tensors(opset: int, per_channel: bool, batch: bool) -> None:
    g = builder()
    scale, zero = np.array(2, np.float32), np.array(3, np.int8)
    if per_channel:
        scale, zero = np.arange(1, 6, dtype=np.float32), np.arange(5, dtype=np.int8)
    value = g.op("QuantizeLinear", g.conv("x", 5, [1, 3]), scale, zero)
    value = g.conv(g.op("DequantizeLinear", value, scale, zero), 2, [3, 3])
    options = FoldOptions(factor=2, axis=AxisName.BATCH) if batch else WIDTH
    result = folded(g.model([value], opset), options, 2)
    assert conversions(result) == 2


def test_a_scale_along_another_axis_is_not_carried() -> None:
    g = builder()
    scale, zero = np.arange(1, 8, dtype=np.float32), np.arange(7, dtype=np.int8)
    value = g.op("QuantizeLinear", g.conv("x", 5, [1, 3]), scale, zero, axis=2)
    value = g.op("DequantizeLinear", value, scale, zero, axis=2)
    assert g.nodes[1] in list(folded(g.model([value])).graph.node)


@pytest.mark.parametrize("factor", [1.0, 1e38])
def test_a_factor_that_would_overflow_the_weight_is_not_carried(factor: float) -> None:
    """The runtime multiplies it into the weight where both stand side by side."""
    g = builder()
    scale = np.array([2, 1, 2, 1, 3], np.float32) * np.float32(factor)
    value = g.op("Mul", g.conv("x", 5, [1, 3]), scale.reshape(5, 1, 1))
    result, _ = fold_model(g.model([value]), WIDTH)
    assert (g.nodes[1] in list(result.graph.node)) == (factor > 1)


ALONG = [
    ("MaxPool", (), {"kernel_shape": [2, 1], "strides": [2, 1]}),
    ("MaxPool", (), {"kernel_shape": [3, 1], "pads": [1, 0, 1, 0]}),
    ("AveragePool", (), {"kernel_shape": [2, 1], "strides": [3, 1]}),
    ("Pad", (np.array([0, 0, 1, 0, 0, 0, 2, 0]),), {}),
    ("Pad", (np.array([0, 0, -1, 0, 0, 0, 1, 0]), np.array(2, np.float32)), {}),
    ("Pad", (np.array([0, 0, 2, 0, 0, 0, 1, 0]),), {"mode": "reflect"}),
    ("Pad", (np.array([1, 0, 0, 0, 0, 0, 0, 0]),), {}),
    ("ReduceMax", (), {"axes": [2]}),
    ("ReduceMin", (), {"axes": [-2]}),
    ("ReduceSum", (np.array([2]),), {}),
    ("Resize", ("", np.array([1, 1, 2, 1], np.float32)), {"mode": "nearest"}),
]


@pytest.mark.parametrize(("op", "inputs", "attributes"), ALONG)
def test_what_acts_along_other_axes_is_carried(op: str, inputs: tuple, attributes: dict) -> None:
    g = builder()
    value = g.op(op, g.conv("x", 5, [1, 3]), *inputs, **attributes)
    model = g.model([g.conv(value, 2, [3, 3])])
    assert conversions(folded(model, count=2)) == 2


def test_a_batch_in_channels_passes_all_of_them() -> None:
    for op, inputs, attributes in ALONG:
        if op != "Pad":
            g = builder()
            value = g.op(op, g.conv("x", 5, [1, 3]), *inputs, **attributes)
            options = FoldOptions(factor=2, axis=AxisName.BATCH)
            assert conversions(folded(g.model([value]), options)) == 2


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        ("MaxPool", (), {"kernel_shape": [1, 3], "pads": [0, 1, 0, 1]}),
        ("MaxPool", (), {"kernel_shape": [1, 1], "strides": [1, 2]}),
        ("MaxPool", (), {"kernel_shape": [2, 1], "ceil_mode": 1, "strides": [2, 1]}),
        ("AveragePool", (), {"kernel_shape": [2, 1], "auto_pad": "SAME_UPPER"}),
        ("Pad", (np.array([0, 0, 0, 1, 0, 0, 0, 0]),), {}),
        ("Pad", (np.array([0, 1, 0, 0, 0, 0, 0, 0]),), {}),
        ("ReduceMax", (), {"axes": [1]}),
        ("ReduceMax", (), {"axes": [3]}),
        ("ReduceMax", (), {"axes": [2, 3]}),
        ("ReduceMax", (), {}),
        ("ReduceSum", (), {}),
        ("Resize", ("", np.array([1, 1, 1, 2], np.float32)), {"mode": "nearest"}),
        ("Resize", ("", "", np.array([2, 5, 7, 24])), {"mode": "nearest"}),
        ("Resize", ("", "", np.array([2, 10, 7, 12])), {"mode": "nearest"}),
        ("Softmax", (), {"axis": 2}),
        ("GlobalMaxPool", (), {}),
        ("Transpose", (), {"perm": [0, 1, 3, 2]}),
    ],
)
def test_what_acts_along_folded_axes_is_not(op: str, inputs: tuple, attributes: dict) -> None:
    g = builder()
    g.op(op, g.conv("x", 5, [1, 3]), *inputs, **attributes)
    result = folded(g.model(["v1"]))
    assert result.graph.node[-1] == g.nodes[-1]


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "extents"),
    [
        ("MaxPool", (), {"kernel_shape": [8, 1]}, (2, 5, 0, 12)),
        ("AveragePool", (), {"kernel_shape": [9, 1], "pads": [1, 0, 0, 0]}, (2, 5, 0, 12)),
        ("Pad", (np.array([0, 0, -3, 0, 0, 0, -4, 0]),), {}, (2, 5, 0, 12)),
        ("Resize", ("", np.array([1, 1, 0.1, 1], np.float32)), {}, (2, 5, 0, 12)),
    ],
)
def test_what_returns_no_element_is_not_carried(
    op: str, inputs: tuple, attributes: dict, extents: tuple[int, ...]
) -> None:
    """A Reshape could not say its extents: 0 means that of the input there."""
    g = builder()
    value = g.op(op, g.conv("x", 5, [1, 3]), *inputs, **attributes)
    result = folded(g.model([value]))
    assert [kind for kind in ops(result) if kind not in MOVES] == ["Conv", op]
    (empty,) = run(result, np.zeros((2, 3, 7, 12), np.float32), "ORT_ENABLE_ALL")
    assert empty.shape == extents


def test_a_residual_block_reads_the_fold_of_its_first_conv() -> None:
    g = builder()
    value = g.conv(g.op("Relu", g.conv("x", 3, [3, 3])), 3, [1, 3])
    value = g.op("Relu", g.op("Add", value, "x"))
    assert conversions(folded(g.model([value]), count=2)) == 2


def test_a_residual_that_is_nowhere_folded_is_not() -> None:
    g = builder()
    value = g.op("Add", g.conv(g.op("Abs", "x"), 3, [3, 3]), "x")
    result = folded(g.model([value]))
    assert result.graph.node[-1] == g.nodes[-1]
    assert conversions(result) == 2


def test_concat_of_folded_tensors() -> None:
    g = builder()
    first, second = g.conv("x", 2, [3, 3]), g.conv("x", 5, [1, 3])
    value = g.conv(g.op("Concat", first, second, axis=1, channels=7), 3, [3, 3])
    assert conversions(folded(g.model([value]), count=3)) == 2


@pytest.mark.parametrize("last", ["nothing", "relu"])
def test_a_concat_that_only_grows_what_is_unfolded_is_not_carried(last: str) -> None:
    g = builder()
    value = g.op("Concat", g.conv("x", 2, [3, 3]), "x", axis=-3, channels=5)
    value = g.op("Relu", value) if last == "relu" else value
    result = folded(g.model([value]))
    assert g.nodes[1] in list(result.graph.node)


def test_a_concat_of_samples_folded_into_channels_is_not_carried() -> None:
    g = builder(4, 3, 7, 12)
    first, second = g.conv("x", 2, [3, 3]), g.conv("x", 5, [1, 3])
    value = g.conv(g.op("Concat", first, second, axis=1, channels=7), 3, [3, 3])
    result = folded(g.model([value]), FoldOptions(factor=2, axis=AxisName.BATCH), 3)
    assert g.nodes[2] in list(result.graph.node)


def test_a_value_that_is_read_both_ways_is_unfolded_once() -> None:
    g = builder()
    middle = g.op("Relu", g.conv("x", 3, [3, 3]))
    left = g.op("Softmax", middle, axis=-1)
    right = g.op("ReduceMax", middle, axes=[3], keepdims=1)
    last = g.conv(middle, 2, [1, 3])
    result = folded(g.model([left, right, last]), count=2)
    assert conversions(result) == 3


def test_an_output_in_the_middle_of_a_region() -> None:
    g = builder()
    first = g.conv("x", 3, [3, 3])
    middle = g.op("Relu", first)
    last = g.conv(middle, 2, [1, 3])
    result = folded(g.model([middle, first, last]), count=2)
    assert [output.name for output in result.graph.output] == [middle, first, last]
    assert conversions(folded(g.model([middle, last]), count=2)) == 3


def test_another_state_is_reached_by_the_natural_one() -> None:
    """A kernel of one position is folded in blocks, a wider one into neighbours."""
    g = builder()
    value = g.conv(g.op("Relu", g.conv("x", 3, [3, 1])), 2, [1, 3])
    assert conversions(folded(g.model([value]), count=2)) == 3


@pytest.mark.parametrize(
    ("options", "group"), [({"layout": Layout.NHWC}, 3), ({"ragged": True, "factor": 5}, 1)]
)
def test_what_is_extended_or_digit_major_by_groups_is_not_carried(
    options: dict, group: int
) -> None:
    g = builder()
    value = g.op("Relu", g.conv("x", 3, [3, 3], group))
    value = g.conv(value, 3, [1, 3], group)
    result = folded(g.model([value]), FoldOptions(**{"factor": 4, "axis": 3, **options}), 2)
    assert g.nodes[1] in list(result.graph.node)


def test_digits_before_channels_are_carried_and_the_runtime_absorbs_the_transposes(
    tmp_path,
) -> None:
    """On the CPU the runtime computes in blocks of channels, which it makes of NHWC at no cost."""
    g = builder(2, 1, 7, 64)
    value = g.op("Add", g.conv("x", 3, [3, 3]), g.integers(3, 1, 1))
    value = g.conv(g.op("Relu", value), 1, [1, 3])
    options = FoldOptions(factor=16, axis=AxisName.WIDTH, layout=Layout.NHWC)
    result = folded(g.model([value]), options, 2)
    assert ops(result) == ["Reshape", "Transpose", "Conv", "Add", "Relu", "Conv", *REVERSED]
    assert set(optimized(result, "ALL", tmp_path)) >= {"ReorderInput", "ReorderOutput"}
    assert "Transpose" not in optimized(result, "ALL", tmp_path)
    assert optimized(result, "EXTENDED", tmp_path).count("Transpose") == 2
    # Joined along the channels, the digits would lie between them: both are unfolded before.
    joined = g.op("Concat", value, g.conv(value, 3, [1, 3]), axis=1)
    assert conversions(folded(g.model([joined]), options, 3)) == 3


def test_an_open_batch_runs_at_every_size() -> None:
    g = builder("N", 3, 7, 12)
    value = g.op("Add", g.conv(g.op("Relu", g.conv("x", 3, [3, 3])), 3, [1, 3]), "x")
    model = g.model([value])
    result = folded(model, count=2)
    assert conversions(result) == 2
    for batch in (0, 1, 5):
        x = np.random.default_rng(0).integers(-3, 4, (batch, 3, 7, 12)).astype(np.float32)
        np.testing.assert_array_equal(run(result, x, LEVELS[0])[0], run(model, x, LEVELS[0])[0])


def test_what_names_a_value_keeps_it() -> None:
    g = builder()
    value = g.conv(g.op("Relu", g.conv("x", 3, [3, 3])), 2, [1, 3])
    model = g.model([value])
    model.graph.value_info.append(helper.make_tensor_value_info("v0", 1, [2, 3, 7, 12]))
    assert not folded(model, count=2).graph.value_info
    model.graph.quantization_annotation.add(tensor_name="v0")
    result = folded(model, count=2)
    assert [info.name for info in result.graph.value_info] == ["v0"]
    assert any("v0" in node.output for node in result.graph.node)


def test_regions_stay_in_their_graph() -> None:
    """Each branch folds what it captures by itself."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        main (float[2, 3, 7, 12] x) => (float[2, 3, 7, 12] y, float[2, 3, 7, 12] z) {
          c = Conv <pads = [1, 1, 1, 1]> (x, w)
          a = Relu (c)
          z = Conv <pads = [1, 1, 1, 1]> (a, w)
          flag = Constant <value = bool {1}> ()
          y = If (flag) <
            then_branch = then () => (float[2, 3, 7, 12] t) {
              k = Conv <pads = [1, 1, 1, 1]> (a, w)
              m = Relu (k)
              t = Conv <pads = [1, 1, 1, 1]> (m, w)
            },
            else_branch = else () => (float[2, 3, 7, 12] e) { e = Neg (c) }
          >
        }"""
    )
    weight = np.random.default_rng(1).integers(-2, 3, (3, 3, 3, 3)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    result = folded(model, count=4)
    names = {name for node in result.graph.node for name in node.output}
    assert {"a", "c"} <= names
    (then,) = (a.g for a in result.graph.node[-1].attribute if a.name == "then_branch")
    assert [n.op_type for n in then.node if n.op_type not in MOVES] == ["Conv", "Relu", "Conv"]


def test_nodes_in_any_order() -> None:
    g = builder()
    value = g.op("Relu", g.conv("x", 3, [3, 3]))
    model = g.model([g.conv(value, 2, [1, 3])])
    backwards = onnx.ModelProto()
    backwards.CopyFrom(model)
    del backwards.graph.node[:]
    backwards.graph.node.extend(reversed(model.graph.node))
    result, _ = fold_model(backwards, WIDTH)
    x = np.random.default_rng(0).integers(-3, 4, (2, 3, 7, 12)).astype(np.float32)
    np.testing.assert_array_equal(run(result, x, LEVELS[0])[0], run(model, x, LEVELS[0])[0])
    kinds = [kind for kind in ops(result) if kind not in MOVES]
    assert kinds == ["Conv", "Relu", "Conv"]
