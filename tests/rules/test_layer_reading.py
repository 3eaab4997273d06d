"""Refusals of a product of matrices, in words that say what to do."""

from __future__ import annotations

import inspect
import re

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.folding import fold_model
from tests.operators.products import Product
from tests.running import run
from widthfold_onnx.model import constants
from widthfold_onnx.model.proto import constant_folding
from widthfold_onnx.options import FoldOptions, NonFinite
from widthfold_onnx.refusal import Code
from widthfold_onnx.results import SiteReport
from widthfold_onnx.rules.layer_reading import BIAS_CODES, WEIGHT_CODES

OPEN = Product(shape=[16, 3], weight=[3, 5], dims=["n", 3])
BATCH = Product(shape=[4, 6, 3], weight=[3, 5])

REFUSALS: dict[str, tuple[Product, FoldOptions, str, str]] = {
    "rows": (
        Product(shape=[33, 3], weight=[3, 5]),
        FoldOptions(factor=8),
        "factor-does-not-divide",
        "rows: 33 rows are not a multiple of 8",
    ),
    "columns": (
        Product(shape=[3, 33], weight=[5, 3], weight_on_left=True),
        FoldOptions(factor=8),
        "factor-does-not-divide",
        "columns: 33 columns are not a multiple of 8",
    ),
    "batches of the left do not merge": (
        Product(shape=[8, 3, 6], weight=[5, 3], weight_on_left=True),
        FoldOptions(factor=4, mix_samples=True),
        "factor-does-not-divide",
        "columns: 6 columns are not a multiple of 4",
    ),
    "batched weights do not merge": (
        Product(shape=[8, 6, 3], weight=[8, 3, 5]),
        FoldOptions(factor=4, mix_samples=True),
        "factor-does-not-divide",
        "rows: 6 rows are not a multiple of 4",
    ),
    "one row": (
        Product(shape=[1, 3], weight=[3, 5]),
        FoldOptions(factor=8),
        "one-position",
        "rows: the data has one of its rows, so there is none to move",
    ),
    "a flag that is neither 0 nor 1": (
        Product(shape=[16, 3], weight=[5, 3], op="Gemm", attributes={"transB": 2}),
        FoldOptions(factor=8, mix_samples=True),
        "inconsistent-attributes",
        "transB is 2, neither 0 nor 1",
    ),
    "a vector": (
        Product(shape=[3], weight=[3, 5]),
        FoldOptions(factor=8),
        "one-position",
        "the data is a vector: there are no positions to fold",
    ),
    "open rows": (
        OPEN,
        FoldOptions(factor=8),
        "mixes-samples",
        "rows: the rows may be samples of a batch, and a NaN of one would reach others; "
        "--input-shape x:8,3 --mix-samples folds it",
    ),
    "open rows may be samples": (
        OPEN,
        FoldOptions(factor=8, input_shapes={"x": (16, 3)}),
        "mixes-samples",
        "rows: the rows may be samples of a batch, and a NaN of one would reach others; "
        "--mix-samples folds it",
    ),
    "only with the samples": (
        BATCH,
        FoldOptions(factor=8),
        "mixes-samples",
        "rows: the rows may be samples of a batch, and a NaN of one would reach others; "
        "--mix-samples folds it",
    ),
    "samples across": (
        Product(
            op="Gemm",
            shape=[16, 3],
            dims=["n", 3],
            weight=[5, 3],
            weight_on_left=True,
            addend=[5, 1],
            attributes={"transB": 1},
        ),
        FoldOptions(factor=8, input_shapes={"x": (16, 3)}),
        "mixes-samples",
        "columns: the columns may be samples of a batch, and a NaN of one would reach others; "
        "--mix-samples folds it",
    ),
    "two assumed extents": (
        Product(shape=[4, 6, 3], weight=[3, 5], dims=["n", "m", 3]),
        FoldOptions(factor=8, mix_samples=True, input_shapes={"x": (4, 6, 3)}),
        "factor-does-not-divide",
        "rows: 24 rows are not a multiple of 8",
    ),
    "strict": (
        Product(shape=[1, 16, 3], weight=[3, 5]),
        FoldOptions(factor=8, nonfinite=NonFinite.REFUSE),
        "structural-zeros",
        "rows: 88% of the weight would be zeros that spread Inf and NaN",
    ),
    "growth": (
        Product(shape=[1, 16, 3], weight=[3, 5]),
        FoldOptions(factor=8, max_flops_growth=4),
        "flops-growth",
        "rows: multiply-adds would grow 8.0x; --max-flops-growth is 4",
    ),
    "bytes": (
        Product(shape=[1, 16, 3], weight=[3, 5]),
        FoldOptions(factor=8, max_bytes_growth=2),
        "bytes-growth",
        "rows: input, weight and output would grow 7.6x; --max-bytes-growth is 2",
    ),
    "wide": (
        Product(shape=[16, 32], weight=[32, 40]),
        FoldOptions(factor=8),
        "already-wide",
        "32 -> 40 channels; both sides have at least 32 (--max-channels)",
    ),
    "another axis": (
        Product(shape=[16, 3], weight=[3, 5]),
        FoldOptions(factor=8, axis=0),
        "no-such-axis",
        "MatMul folds along no axis 0",
    ),
    "integers": (
        Product(shape=[16, 3], weight=[3, 5], dtype=np.int32),
        FoldOptions(factor=8),
        "dtype-unsupported",
        "elements are INT32; FLOAT, FLOAT16, DOUBLE, BFLOAT16 fold",
    ),
    "a number": (
        Product(shape=[16, 3], weight=[]),
        FoldOptions(factor=8),
        "inconsistent-shapes",
        "the weight is a single number: no product has one",
    ),
    "an old Gemm": (
        Product(
            op="Gemm",
            shape=[16, 3],
            weight=[3, 5],
            addend=[5],
            opset=6,
            attributes={"broadcast": 1},
        ),
        FoldOptions(factor=8),
        "opset-too-old",
        "Gemm at opset 6 is below 7",
    ),
}


def refused(model: onnx.ModelProto, options: FoldOptions) -> SiteReport:
    folded, (site,) = fold_model(model, options)
    assert folded.SerializeToString() == model.SerializeToString()
    assert site.status == "refused"
    return site


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(case: str) -> None:
    product, options, code, reason = REFUSALS[case]
    site = refused(product.model(), options)
    assert (site.code, site.reason) == (code, reason)


@pytest.mark.parametrize("case", ["open rows may be samples", "only with the samples"])
def test_samples_mix_if_asked_to(case: str) -> None:
    product, options, _, _ = REFUSALS[case]
    options = FoldOptions(factor=8, mix_samples=True, input_shapes=options.input_shapes)
    assert fold_model(product.model(), options)[1][0].status == "folded"


@pytest.mark.parametrize(("samples", "code"), [(8, "mixes-samples"), (1, "one-position")])
def test_rows_are_samples_where_the_model_has_as_many(samples: int, code: str) -> None:
    """Flatten makes rows of the samples of an image batch."""
    nodes = [
        helper.make_node("Flatten", ["x"], ["f"], "flatten"),
        helper.make_node("MatMul", ["f", "w"], ["y"], "site"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [samples, 3, 5])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [None] * 2)],
        [numpy_helper.from_array(np.ones((15, 2), np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert refused(model, FoldOptions(factor=4)).code == code


def reshaped(shape: list[int], to: list[int], factor: int, **options: object) -> SiteReport:
    """The outcome of a product of an input of the model in another shape."""
    model = Product(shape=to, weight=[to[-1], 5], first="Identity").model()
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape))
    model.graph.initializer.append(numpy_helper.from_array(np.array(to), "to"))
    model.graph.node.insert(0, helper.make_node("Reshape", ["x", "to"], ["r"], "reshape"))
    model.graph.node[1].input[0] = "r"
    return fold_model(model, FoldOptions(factor=factor, **options))[1][0]


@pytest.mark.parametrize(
    ("shape", "to", "factor", "code"),
    [
        ([3, 8, 2], [24, 2], 8, "folded"),  # 8 rows of each of three samples
        ([3, 8, 2], [24, 2], 6, "mixes-samples"),
        ([5, 12, 2], [60, 2], 10, "mixes-samples"),
        ([3, 8, 2], [8, 3, 2], 3, "mixes-samples"),  # time before samples
        ([3, 8, 2], [8, 3, 2], 4, "mixes-samples"),
        ([1, 8, 2], [8, 1, 2], 4, "folded"),
        ([3, 8, 2], [4, 6, 2], 6, "folded"),
        ([3, 8, 2], [4, 6, 2], 8, "mixes-samples"),
        ([3, 8, 3], [3, 3, 8], 3, "folded"),
    ],
)
def test_samples_are_found_where_they_went(shape, to, factor, code) -> None:
    assert reshaped(shape, to, factor).code == code
    assert reshaped(shape, to, factor, mix_samples=True).status == "folded"


def test_rank_that_only_the_assumed_shape_knows() -> None:
    model = Product(shape=[8, 3], weight=[3, 5]).model()
    model.graph.input[0].type.tensor_type.ClearField("shape")
    site = refused(model, FoldOptions(factor=4, input_shapes={"x": (8, 3)}))
    assert (site.code, site.reason) == ("unknown-shape", "the rank of the input is not known")


def test_a_rank_that_is_lost_names_the_operator_that_loses_it() -> None:
    model = Product(shape=[8, 3], weight=[3, 5]).model()
    model.opset_import.append(helper.make_opsetid("acme", 1))
    (product,) = [node for node in model.graph.node if node.op_type == "MatMul"]
    lost = helper.make_node("Warp", ["x"], ["lost"], "warp", domain="acme")
    relu = helper.make_node("Relu", ["lost"], ["later"], "relu")
    product.input[0] = "later"
    model.graph.node.insert(0, relu)
    model.graph.node.insert(0, lost)
    site = refused(model, FoldOptions(factor=4))
    assert site.code == "unknown-shape"
    told, advice = site.reason.split("; ")[1:]
    assert told == "nothing tells the extents of what Warp warp returns"
    assert advice == "if they are the same at every run, declare them in value_info"
    model.graph.value_info.append(helper.make_tensor_value_info("lost", 1, [8, 3]))
    _, (site,) = fold_model(model, FoldOptions(factor=4, mix_samples=True))
    assert site.status == "folded"


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ([8, 15], {"weight": [15, 2]}),  # rows
        # columns, by a Transpose
        ([8, 15], {"weight": [2, 15], "weight_on_left": True, "turned": True}),
        (
            [8, 15],
            {"weight": [2, 15], "weight_on_left": True, "op": "Gemm", "attributes": {"transB": 1}},
        ),
    ],
)
def test_rows_of_a_matrix_that_is_an_input_of_the_model_are_samples(shape, options) -> None:
    """A NaN in one row reaches no other, unless the caller allows it."""
    first = "Transpose" if options.pop("turned", False) else "Identity"
    model = Product(shape=shape, first=first, **options).model()
    assert refused(model, FoldOptions(factor=4)).code == "mixes-samples"
    x = np.ones(shape, np.float32)
    x[3] = np.nan
    (plain,) = run(model, {"x": x})
    folded, _ = fold_model(model, FoldOptions(factor=4, mix_samples=True))
    (mixed,) = run(folded, {"x": x})
    assert np.isnan(plain).mean() == 1 / 8
    assert np.isnan(mixed).mean() == 4 / 8


def test_a_weight_that_is_listed_as_an_input_is_no_batch() -> None:
    """Files of IR version 3 list every constant as an input."""
    model = Product(shape=[1, 8, 3], weight=[3, 5]).model()
    model.graph.node[0].op_type = "Flatten"
    model.graph.node[0].attribute.append(helper.make_attribute("axis", 2))
    listed = helper.make_tensor_value_info("scale", onnx.TensorProto.FLOAT, [4, 3])
    model.graph.input.append(listed)
    assert refused(model, FoldOptions(factor=8)).code == "mixes-samples"
    scale = numpy_helper.from_array(np.ones((4, 3), np.float32), "scale")
    model.graph.initializer.append(scale)
    assert fold_model(model, FoldOptions(factor=8))[1][0].status == "folded"


def other_inputs(change: str) -> onnx.ModelProto:
    """A Gemm whose input `change` is computed as well; of "none" both operands are constant."""
    model = Product(op="Gemm", shape=[16, 3], weight=[3, 5], addend=[5], first="Neg").model()
    graph = model.graph
    if change != "none":
        graph.node.insert(0, helper.make_node("Abs", [change], [f"{change}2"], "abs"))
        site = next(node for node in graph.node if node.name == "site")
        site.input[:] = [f"{name}2" if name == change else name for name in site.input]
    else:
        graph.node[1].input[0] = "w"
        graph.initializer.append(numpy_helper.from_array(np.ones((5, 3), np.float32), "v"))
        graph.node[1].input[1] = "v"
    return model


@pytest.mark.parametrize(
    ("change", "code", "reason"),
    [
        (
            "w",
            "weight-not-constant",
            "neither operand is a constant weight: z is computed by Neg; w2 is computed by Abs",
        ),
        ("c", "bias-not-constant", "the bias c2 is computed by Abs"),
        ("none", "constant-product", "both operands are constant: no data flows through it"),
    ],
)
def test_operands(change: str, code: str, reason: str) -> None:
    site = refused(other_inputs(change), FoldOptions(factor=8))
    assert (site.code, site.reason) == (code, reason)


@pytest.mark.parametrize(
    ("change", "code"), [("w", "weight-not-evaluated"), ("c", "bias-not-evaluated")]
)
def test_a_constant_that_is_too_large_to_be_computed_has_a_code_of_its_own(
    change: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`weight-too-large` is the code of a form whose weight would be."""
    model = Product(op="Gemm", shape=[16, 3], weight=[3, 5], addend=[5]).model()
    for place, names in enumerate(((change, "t"), ("t", f"{change}2"))):
        model.graph.node.insert(place, helper.make_node("Transpose", names[:1], names[1:]))
    site = next(node for node in model.graph.node if node.name == "site")
    site.input[:] = [f"{name}2" if name == change else name for name in site.input]
    monkeypatch.setattr(constants, "MAX_CONSTANT_ELEMENTS", 4)
    refusal = refused(model, FoldOptions(factor=8))
    assert refusal.code == code
    assert "constants of more than" in refusal.reason


def test_every_code_of_a_constant_has_one_of_a_weight_and_one_of_a_bias() -> None:
    source = inspect.getsource(constants) + inspect.getsource(constant_folding)
    codes = {Code[name] for name in re.findall(r"Code\.([A-Z_]+)", source)}
    assert codes == WEIGHT_CODES.keys() == BIAS_CODES.keys()
