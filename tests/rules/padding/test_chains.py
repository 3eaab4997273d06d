"""Chains of channels that are padded together, and the nodes that keep others from it."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper, parser

from widthfold_onnx.model.document import Document
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.rules.padding.chains import Chains

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[1,3,5,7] x) => (float[1,11,5,7] y, float[1,5,5,7] z)
<float[6,3,1,1] w1, float[10,6,1,1] w2, float[10,6,1,1] w3, float[11,10,1,1] w4,
 float[5,3,1,1] w5>
{
    [first] a = Conv (x, w1)
    [act] b = Relu (a)
    [left] c = Conv (b, w2)
    [right] d = Conv (b, w3)
    [sum] e = Add (c, d)
    [last] y = Conv (e, w4)
    [returned] f = Conv (x, w5)
    [end] z = Softmax (f)
}"""


@pytest.fixture
def document() -> Document:
    model = parser.parse_model(TEXT)
    for value in model.graph.value_info:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        model.graph.initializer.append(
            numpy_helper.from_array(np.ones(shape, np.float32), value.name)
        )
    return Document(model, None, OPERATORS)


def test_a_dense_conv_ends_a_chain_and_a_sum_ties_its_operands(document: Document) -> None:
    padding = Chains(document).plan(4)
    widths = {
        node.name: (layout.channels, layout.width) for node, layout in padding.maker_layouts.items()
    }
    assert widths == {"first": (6, 8), "left": (10, 12), "right": (10, 12)}
    chains = sorted(sorted(node.name or "" for node in chain) for chain in padding.chains)
    assert chains == [["first", "left", "right"]]
    padded = {value.name: layout.width for value, layout in padding.layouts.items()}
    assert padded == {"a": 8, "b": 8, "c": 12, "d": 12, "e": 12}
    assert [node.name for node in padding.nodes] == ["first", "act", "left", "right", "sum", "last"]


def test_what_stops_channels_is_named(document: Document) -> None:
    padding = Chains(document).plan(4)
    stops = {
        maker.name: [(node.name, refusal.code.value) for node, refusal in stops.items()]
        for maker, stops in padding.refused.items()
    }
    assert stops == {"last": [("last", "output")], "returned": [("end", "not-carried")]}


def test_channels_that_are_multiples_already_are_neither_padded_nor_refused(
    document: Document,
) -> None:
    padding = Chains(document).plan(2)
    assert not padding.maker_layouts
    assert {node.name for node in padding.refused} == {"last", "returned"}
    assert not Chains(document).plan(1).refused


@pytest.mark.parametrize(
    ("makers", "padded"),
    [
        ({"first"}, {"first"}),
        ({"left"}, set()),
        ({"left", "right"}, {"left", "right"}),
        ({"first", "right"}, {"first"}),
    ],
)
def test_tied_channels_are_padded_if_all_their_makers_are_named(
    document: Document, makers: set[str], padded: set[str]
) -> None:
    nodes = {node for node in document.main if node.name in makers}
    padding = Chains(document).plan(4, nodes)
    assert {node.name for node in padding.maker_layouts} == padded
