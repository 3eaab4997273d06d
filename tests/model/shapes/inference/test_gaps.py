"""Extents where onnx's own inference errs or knows less."""

from __future__ import annotations

from itertools import product

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests import lacking
from tests.model.shapes.shaped import parsed, shape
from tests.running import LEVELS, run
from widthfold_onnx.model.shapes.table import ShapeTable

PADS = {f"pads = [{begin}, {end}]": (begin, end) for begin in (0, 1) for end in (0, 1, 2)}


@pytest.mark.parametrize("kernel", [1, 2, 3, 4])
@pytest.mark.parametrize(("stride", "more"), [(2, 1), (3, 1), (3, 2)])
@pytest.mark.parametrize("side", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("expected", ["kernel_shape = [{}], ", ""])
def test_a_transposed_convolution_with_same_padding(kernel, stride, more, side, expected):
    """Inference adds all of the output padding; the runtime what the kernel does not reach."""
    site = f"""ConvTranspose <{expected.format(kernel)}strides = [{stride}],
      output_padding = [{more}], auto_pad = "{side}"> (x, w)"""
    w = np.ones((3, 7, kernel), np.float32)
    alone = parsed(f"(float[2, 3, 5] x) => (float[a, b, c] y) {{ y = {site} }}", w=w)
    (y,) = run(alone, np.ones((2, 3, 5), np.float32), LEVELS[1])
    inside = parsed(
        f"""(float[2, 3, 5] x, bool flag) => (float[a, b, c] y) {{
          y = If (flag) <
            then_branch = one () => (float[a, b, c] t) {{ s = {site}
              t = Relu (s) }},
            else_branch = two () => (float[a, b, c] e) {{ e = Neg (x) }}
          >
        }}""",
        w=w,
    )
    assert y.shape == shape(alone, "y") == shape(inside, "t", "y/then_branch")


@pytest.mark.parametrize("expected", [[1, 9], [2, 5], [1, 5]])
def test_a_transposed_convolution_with_an_output_smaller_than_its_input(expected):
    text = f"ConvTranspose <strides = [1, 2], output_shape = {expected}> (x, w)"
    attribute = "(float[N, 3, 2, 6] x) => (float[a, b] y)"
    model = parsed(
        f"{attribute} {{ s = {text}\n y = Flatten (s) }}", w=np.ones((3, 5, 2, 2), np.float32)
    )
    (y,) = run(model, np.ones((7, 3, 2, 6), np.float32), LEVELS[1])
    assert y.shape == (7, 5 * expected[0] * expected[1])
    assert shape(model, "s") == (None, 5, *expected)
    assert shape(model, "y") == (None, y.shape[1])
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    bare.graph.node.pop()
    bare.graph.output[0].CopyFrom(onnx.ValueInfoProto(name="s"))
    bare.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    assert shape(bare, "s", x=(7, 3, 2, 6)) == (7, 5, *expected)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("attribute", [*PADS, 'auto_pad = "VALID"', 'auto_pad = "SAME_UPPER"'])
@pytest.mark.parametrize("kernel", [1, 2, 3])
@pytest.mark.skipif(
    not lacking.ends_windows_in_the_data(),
    reason="ONNX Runtime counts windows of a pool that lie in the pad behind the data",
)
def test_a_pool_that_rounds_up(op, attribute, kernel):
    """Inference counts windows that lie in the pad behind the data; the runtime does not."""
    for extent, stride in product((3, 4, 5, 6), (1, 2, 3)):
        # Pads are below the kernel; ONNX Runtime refuses negative ones, which SAME gives here.
        if kernel <= max(PADS.get(attribute, (0,))) or ("SAME" in attribute and kernel < stride):
            continue
        attributes = f"kernel_shape = [{kernel}], strides = [{stride}], ceil_mode = 1, {attribute}"
        nodes = f"t = {op} <{attributes}> (x)  y = Neg (t)"
        text = f"(float[2, 3, {extent}] x) => (float[a, b, c] y) {{ {nodes} }}"
        model = parsed(text, opset=18)
        (y,) = run(model, np.ones((2, 3, extent), np.float32), LEVELS[1])
        assert shape(model, "t") == y.shape, (extent, stride)


STFT = """(float[N, t, 1] x) => (float[a, b, c, d] y) {{
  step = Constant <value = int64 {{128}}> ()
  {length}
  y = STFT <onesided = {onesided}> (x, step, {inputs})
}}"""


@pytest.mark.parametrize(
    ("length", "inputs", "onesided", "bins"),
    [
        ("", "w", 1, 129),
        ("", "w", 0, 256),
        ("n = Constant <value = int64 {64}> ()", ", n", 1, 33),
        ("n = Constant <value = int64[1] {64}> ()", ", n", 1, 33),
        ("n = Constant <value = int64[2] {64, 64}> ()", ", n", 1, None),
        ("n = Constant <value_int = 64> ()", ", n", 1, 33),
    ],
)
def test_the_bins_of_a_transform(length, inputs, onesided, bins):
    text = STFT.format(length=length, inputs=inputs, onesided=onesided)
    if inputs.startswith(","):
        text = text.replace("step, ,", 'step, "",')
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> main ' + text.replace('"",', "absent,")
    )
    for node in model.graph.node:
        if "absent" in node.input:
            node.input[2] = ""
    model.graph.initializer.append(numpy_helper.from_array(np.ones(256, np.float32), "w"))
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    dims = shape(model, "y")
    assert dims == (None if bins is None else (None, None, bins, 2))


@pytest.mark.parametrize("opset", [18, 21])
def test_a_normalization_of_groups(opset):
    scales = np.ones(2 if opset == 18 else 4, np.float32)
    model = parsed(
        """(float[N, 4, 6] x) => (float[a, b, c] y) {
          v = GroupNormalization <num_groups = 2> (x, s, s)
          u = MeanVarianceNormalization <axes = [2]> (v)
          y = Relu (u)
        }""",
        opset=opset,
        s=scales,
    )
    assert shape(model, "y") == (None, 4, 6)


def test_a_transform_of_another_domain_is_left_alone():
    model = parsed("(float[1] x) => (float[1] y) { y = Relu (x) }")
    model.opset_import.append(helper.make_opsetid("com.acme", 1))
    for inputs in ([], ["x", "x", "x", "x"]):
        for outputs in ([], ["k"]):
            node = helper.make_node("STFT", inputs, outputs, domain="com.acme")
            del model.graph.node[1:]
            model.graph.node.append(node)
            assert shape(model, "k") is None


@pytest.mark.parametrize(
    "text",
    [
        "Affine <alpha = 2.0, beta = 1.0> (x)",
        "Crop <border = [1, 2, 3, 4]> (x)",
        "Crop <border = [1, 2, 0, 0], scale = [7, 5]> (x)",
        "ImageScaler <scale = 0.5, bias = [1.0, 2.0, 3.0]> (x)",
        "ParametricSoftplus <alpha = 0.5, beta = 2.0> (x)",
        "Scale <scale = 2.0> (x)",
        "ScaledTanh <alpha = 0.5, beta = 2.0> (x)",
    ],
)
def test_operators_of_the_runtime_below_opset_10(text):
    """onnx has none of them."""
    result = "(float[N, 3, 13, 11] x) => (float[a, b, c, d] y)"
    model = onnx.parser.parse_model(
        f'<ir_version: 6, opset_import: ["" : 9]> main {result} {{ s = {text} y = Neg (s) }}'
    )
    (y,) = run(model, np.ones((2, 3, 13, 11), np.float32), LEVELS[1])
    assert y.shape == shape(model, "y", x=(2, 3, 13, 11))
    assert shape(model, "y") == (None, *y.shape[1:])


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Scaler <offset = [1.0], scale = [2.0]>", "int64"),
        ('Normalizer <norm = "L2">', "int64"),
        ("Binarizer <threshold = 0.5>", "float"),
        ("Imputer <imputed_value_floats = [1.0], replaced_value_float = 0.0>", "float"),
    ],
)
def test_operators_for_features_keep_the_extents_of_their_data(text, kind):
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>
        main ({kind}[N, 5] x) => (float[a, b] y) {{ s = ai.onnx.ml.{text} (x) y = Neg (s) }}"""
    )
    dtype = np.dtype("float32" if kind == "float" else kind)
    (y,) = run(model, np.ones((3, 5), dtype), LEVELS[1])
    assert y.shape == shape(model, "y", x=(3, 5)) == (3, 5)
    assert y.dtype == np.float32
    assert ShapeTable(model, {}).element_type("", "s") == TensorProto.FLOAT


STUMP = """nodes_treeids = [0, 0, 0], nodes_nodeids = [0, 1, 2], nodes_featureids = [0, 0, 0],
    nodes_modes = ["BRANCH_LEQ", "LEAF", "LEAF"], nodes_values = [0.5, 0.0, 0.0],
    nodes_truenodeids = [1, 0, 0], nodes_falsenodeids = [2, 0, 0], target_treeids = [0, 0],
    target_nodeids = [1, 2], target_ids = [0, 1], target_weights = [1.0, 2.0]"""


@pytest.mark.parametrize("rows", [7, 1])
@pytest.mark.parametrize("version", [1, 3])
@pytest.mark.parametrize(
    "text",
    [
        "LinearRegressor <coefficients = [1.0, 2.0, 3.0, 4.0, 5.0]> (x)",
        f"LinearRegressor <coefficients = {[1.0] * 10}, targets = 2> (x)",
        f"SVMRegressor <coefficients = {[1.0] * 5}, rho = [1.0], kernel_params = {[1.0] * 3}> (x)",
        "FeatureVectorizer <inputdimensions = [5, 5, 5]> (x, x, x)",
        f"TreeEnsembleRegressor <n_targets = 3, {STUMP}> (x)",
    ],
)
def test_operators_that_return_a_row_for_each_of_the_data(text, version, rows):
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : {version}]>
        main (float[N, 5] x) => (float[a, b] y) {{ s = ai.onnx.ml.{text} y = Neg (s) }}"""
    )
    (y,) = run(model, np.ones((rows, 5), np.float32), LEVELS[1])
    assert y.shape == shape(model, "y", x=(rows, 5))
    assert shape(model, "s") == (None, y.shape[1])
    assert ShapeTable(model, {}).element_type("", "s") == TensorProto.FLOAT


@pytest.mark.parametrize(
    ("text", "extents"),
    [
        ("FusedMatMul <alpha = 2.0> (x, w)", ((2, 7, 5), (5, 3))),
        ("FusedMatMul <transA = 1> (x, w)", ((2, 5, 7), (5, 3))),
        ("FusedMatMul <transB = 1> (x, w)", ((11, 2, 7, 5), (3, 5))),
        ("FusedMatMul <transA = 1, transB = 1> (x, w)", ((2, 5, 7), (2, 3, 5))),
        ("FusedMatMul <transA = 1> (x, w)", ((5,), (5, 3))),
        ("Inverse (x)", ((2, 5, 5), (1,))),
        ("Trilu (x)", ((7, 5), (1,))),
    ],
)
def test_operators_of_the_runtime_with_the_extents_of_standard_ones_on_floats(text, extents):
    sides = [f"float{list(shape)} {name}" for name, shape in zip("xw", extents, strict=True)]
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        main ({", ".join(sides)}) => (float[a] y) {{ y = com.microsoft.{text} }}"""
    )
    model.graph.output[0].ClearField("type")
    rng = np.random.default_rng(0)
    feeds = {
        name: rng.standard_normal(extent).astype(np.float32)
        for name, extent in zip("xw", extents, strict=True)
    }
    (y,) = run(model, feeds, LEVELS[1])
    assert shape(model, "y") == y.shape


def test_batches_that_a_product_moves_stay_unknown():
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        main (float[2, 7, 5] x, float[5, 3] w) => (float[a] y)
        { s = com.microsoft.FusedMatMul <transBatchA = 1> (x, w) y = Neg (s) }"""
    )
    assert shape(model, "s") is None


@pytest.mark.parametrize(
    ("text", "is_known"),
    [
        ("QLinearSoftmax <axis = 1, opset = 13> (x, s, z, s, z)", True),
        ("QLinearGlobalAveragePool (x, s, z, s, z)", True),
        ("QLinearGlobalAveragePool <channels_last = 1> (x, s, z, s, z)", False),
        ("QLinearAveragePool <kernel_shape = [2, 2]> (x, s, z, s, z)", True),
        ("QLinearAveragePool <kernel_shape = [2, 2], channels_last = 1> (x, s, z, s, z)", False),
        ("MatMulIntegerToFloat (x, w, s, s)", True),
    ],
)
def test_quantized_operators_of_the_runtime(text, is_known):
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        main (uint8[2, 3, 7, 5] x) => (float[a] y)
        <float s = {{0.5}}, uint8 z = {{3}}, uint8[5, 2] w = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 1}}>
        {{ y = com.microsoft.{text} }}"""
    )
    model.graph.output[0].ClearField("type")
    (y,) = run(model, np.ones((2, 3, 7, 5), np.uint8), LEVELS[1])
    table = ShapeTable(model, {})
    assert table.get("", "y") == (y.shape if is_known else None)
    if is_known:
        assert table.element_type("", "y") == helper.np_dtype_to_tensor_dtype(y.dtype)


def test_a_product_with_a_weight_that_is_quantized_at_run_time():
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        main (float[2, 7, 5] x) => (float[a] y)
        <float s = {0.5}, uint8[5, 2] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1}>
        { y = com.microsoft.DynamicQuantizeMatMul (x, w, s) }"""
    )
    model.graph.output[0].ClearField("type")
    (y,) = run(model, np.ones((2, 7, 5), np.float32), LEVELS[1])
    assert shape(model, "y") == y.shape


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("BiasGelu (x, b)", "float"),
        ("FastGelu (x)", "float"),
        ("Gelu (x)", "float"),
        ("QuickGelu <alpha = 1.5> (x)", "float"),
        ("SkipLayerNormalization (x, x, b)", "float"),
        (
            'FusedGemm <transB = 1, activation = "LeakyRelu", activation_alpha = 0.5> (x, w)',
            "float",
        ),
        ("QLinearAdd (x, s, z, q, s, z, s, z)", "uint8"),
        ("QLinearMul (x, s, z, q, s, z, s, z)", "uint8"),
        ("QLinearConcat <axis = -1> (s, z, x, s, z, q, s, z)", "uint8"),
        ("QLinearLeakyRelu <alpha = 0.5> (x, s, z, s, z)", "uint8"),
        ("QLinearSigmoid (x, s, z, s, z)", "uint8"),
        ("QuantizeLinear (x, s, z)", "float"),
        ("DequantizeLinear (x, s, z)", "uint8"),
    ],
)
def test_operators_of_the_runtime_with_the_extents_of_standard_ones(text, kind):
    result = {"DequantizeLinear": "float", "QuantizeLinear": "uint8"}.get(text.split()[0], kind)
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        main ({kind}[N, 5] x) => ({result}[a, b] y)
        <float[5] b = {{1, 2, 3, 4, 5}}, float s = {{0.5}}, uint8 z = {{3}},
         uint8[1, 5] q = {{1, 2, 3, 4, 5}}, float[2, 5] w = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}}>
        {{ y = com.microsoft.{text} }}"""
    )
    rows = 1 if "Concat" in text else 3
    data = np.ones((rows, 5), np.float32 if kind == "float" else np.uint8)
    (y,) = run(model, data, LEVELS[1])
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    table = ShapeTable(model, {"x": (rows, 5)})
    assert table.get("", "y") == y.shape
    model.graph.output[0].ClearField("type")
    kinds = ShapeTable(model, {"x": (rows, 5)}).element_type("", "y")
    assert kinds == helper.np_dtype_to_tensor_dtype(y.dtype)


def test_extents_of_which_one_is_open_are_read():
    model = parsed(
        """(float[n, 4, 5] x) => (float[a, b] y)
        { m = Shape<end = 1> (x)  s = Concat<axis = 0> (m, k)
          r = Reshape (x, s)  y = Relu (r) }""",
        k=np.int64([20]),
    )
    assert shape(model, "r") == (None, 20)


@pytest.mark.parametrize("numbers", [np.float32([2, 3]), np.array([True, True])])
@pytest.mark.parametrize("site", ["Expand (x, n)", "ConstantOfShape (n)", "Resize (x, , , n)"])
def test_extents_that_are_no_whole_numbers_are_not_read(site, numbers):
    model = parsed(f"(float[1, 1] x) => (float[a, b] y) {{ s = {site}\n y = Relu (s) }}", n=numbers)
    assert set(shape(model, "s") or ()) <= {None}
