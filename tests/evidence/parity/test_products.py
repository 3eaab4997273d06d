"""Products of a run, counted from the shapes of a model."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from widthfold_onnx.evidence.parity import chosen_inputs
from widthfold_onnx.evidence.parity.products import products
from widthfold_onnx.model.loader import load
from widthfold_onnx.model.shapes.table import ShapeTable
from widthfold_onnx.options import Provider, VerifyOptions
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.runtime.session import open_session

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g ({head}) => ({results}) {{ {nodes} }}"""


def parsed(head: str, nodes: str, results: str = "float y") -> onnx.ModelProto:
    return onnx.parser.parse_model(TEXT.format(head=head, nodes=nodes, results=results))


@pytest.mark.parametrize(
    ("head", "nodes", "count"),
    [
        (
            "float[N,6,L] x, float[10,3,7] w",  # two groups: 2 x 10 x 11 outputs of 3 x 7 products
            "y = Conv <group = 2> (x, w)",
            2 * 10 * 11 * 3 * 7,
        ),
        ("float[N,6,L] x, float[6,5,3] w", "y = ConvTranspose (x, w)", 2 * 6 * 17 * 5 * 3),
        ("float[N,L] x, float[17,5] w", "y = Gemm (x, w)", 2 * 17 * 5),
        ("float[L,N] x, float[17,5] w", "y = Gemm <transA = 1> (x, w)", 2 * 17 * 5),
        ("float[N,7,L] x, float[17,3] w", "a = MatMul (x, w) y = Relu (a)", 2 * 7 * 17 * 3),
        (
            "float[N,L] x, float[17,5] w",
            "k = NonZero (x) z = Cast <to = 1> (k) y = MatMul (z, x)",
            0,
        ),
    ],
)
def test_products_are_counted(head: str, nodes: str, count: int) -> None:
    model = parsed(head, nodes)
    dims = {"N": 2, "L": 17}
    shapes = {
        value.name: tuple(
            d.dim_value or dims[d.dim_param] for d in value.type.tensor_type.shape.dim
        )
        for value in model.graph.input
    }
    assert products(model, ShapeTable(model, shapes)) == count


def test_the_second_size_takes_no_more_products_than_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.onnx"
    head, nodes = (
        "float[1,2,T] x",
        "w = Constant <value = float[2,2,1] {1,2,3,4}> () y = Conv (x, w)",
    )
    onnx.save(parsed(head, nodes, "float[1,2,U] y"), path)
    model, options = load(path), VerifyOptions(provider=Provider.CPU, seeds=1)
    session = open_session(path, options, Level.DISABLED)
    lengths = []
    for most in (1 << 34, 4 * 4096):
        monkeypatch.setattr("widthfold_onnx.evidence.parity.products.MAX_PRODUCTS", most)
        inputs, _ = chosen_inputs.run_on_inputs(model, session, options)
        lengths.append([item.feeds["x"].shape[2] for item in inputs.sets])
    assert lengths == [[1024, 16383], [1024, 4095]]
