"""Weights with other readers, weights behind nodes, and operands that are no weights."""

from __future__ import annotations

import pytest
from onnx import helper, numpy_helper

from tests.model.refolded import SQUARE, B, W, constants, data, parsed, refolded
from widthfold_onnx.options import FoldOptions

TWICE = """(float[1, 2, 8, 8] x) => (float[1, 3, 8, 8] y, float[1, 3, 8, 8] z) {
  [first] y = Conv <PADS> (x, w)
  [second] z = Conv <PADS> (x, w)
}"""


def test_a_weight_that_another_conv_keeps_stays():
    model = parsed(TWICE, {"w": W})
    options = FoldOptions(factor=2, skip=("second",))
    result, codes = refolded(model, options=options)
    assert codes == {"first": "folded", "second": "not-selected"}
    assert "w" in constants(result)
    assert result.graph.node[-1] == model.graph.node[-1]


def test_a_weight_folded_twice_alike_is_one_tensor():
    result, codes = refolded(parsed(TWICE, {"w": W}))
    assert set(codes.values()) == {"folded"}
    assert "w" not in constants(result)
    convs = [node for node in result.graph.node if node.op_type == "Conv"]
    assert convs[0].input[1] == convs[1].input[1]
    assert sum(name.startswith("w/") for name in constants(result)) == 1


@pytest.mark.parametrize(
    "rest",
    ["v = Identity (w)", "v = Relu (w)", "v = Conv <PADS> (w, w2)"],
    ids=["id", "op", "data"],
)
def test_a_weight_with_another_reader_stays(rest):
    model = parsed(
        f"""(float[1, 2, 8, 8] x) => (float[1, 3, 8, 8] y, float[N, M, 3, 3] v) {{
          [c] y = Conv <PADS> (x, w)
          {rest}
        }}""",
        {"w": W, "w2": SQUARE},
    )
    result, codes = refolded(model)
    assert codes["c"] == "folded"
    assert "w" in constants(result)


def test_a_weight_that_is_an_output_stays():
    model = parsed(
        "(float[1, 2, 8, 8] x) => (float[1, 3, 8, 8] y, float[3, 2, 3, 3] w) {"
        "[c] y = Conv <PADS> (x, w) }",
        {"w": W},
    )
    result, codes = refolded(model)
    assert codes == {"c": "folded"}
    assert "w" in constants(result)
    assert result.graph.output == model.graph.output


def test_a_weight_behind_identities_goes_with_them():
    model = parsed(
        """(float[1, 2, 8, 8] x) => (float[1, 3, 8, 8] y) {
          v = Identity (w)
          u = Identity (v)
          [c] y = Conv <PADS> (x, u, b)
        }""",
        {"w": W, "b": B},
    )
    result, codes = refolded(model)
    assert codes == {"c": "folded"}
    assert not {"w", "b"} & set(constants(result))
    assert not [node for node in result.graph.node if node.op_type == "Identity"]


def test_an_identity_of_another_domain_is_no_identity():
    model = parsed(
        """(float[1, 2, 8, 8] x) => (float[1, 3, 8, 8] y) {
          v = loc.Identity (w)
          [c] y = Conv <PADS> (x, v)
        }""",
        {"w": W},
    )
    opsets = [helper.make_opsetid("", 17)]
    negated = helper.make_node("Neg", ["p"], ["q"])
    model.functions.append(helper.make_function("loc", "Identity", ["p"], ["q"], [negated], opsets))
    model.opset_import.append(helper.make_opsetid("loc", 1))
    result, codes = refolded(model)
    assert codes == {"c": "weight-not-constant"}
    assert result == model


@pytest.mark.parametrize("place", [0, 1], ids=["before", "after"])
def test_a_weight_in_a_constant_node(place):
    model = parsed("(float[1, 2, 8, 8] x) => (float[1, 3, 8, 8] y) { [c] y = Conv <PADS> (x, w) }")
    tensor = numpy_helper.from_array(W)
    model.graph.node.insert(place, helper.make_node("Constant", [], ["w"], value=tensor))
    result, codes = refolded(model)
    assert codes == {"c": "folded"}
    assert "Constant" not in {node.op_type for node in result.graph.node}


def test_nodes_out_of_order_are_put_in_an_order_that_can_run():
    model = parsed(
        """(float[1, 2, 8, 8] x) => (float[1, 3, 8, 8] y) {
          y = Relu (c)
          [conv] c = Conv <PADS> (a, w)
          a = Sigmoid (x)
        }""",
        {"w": W},
    )
    result, codes = refolded(model)
    assert codes == {"conv": "folded"}
    ops = [node.op_type for node in result.graph.node]
    assert ops.index("Sigmoid") < ops.index("Conv") < ops.index("Relu")


def test_a_computed_weight_and_a_fed_weight_are_refused():
    model = parsed(
        """(float[1, 2, 8, 8] x, float[3, 2, 3, 3] f)
        => (float[1, 3, 8, 8] y, float[1, 3, 8, 8] z) {
          v = Neg (w)
          [computed] y = Conv <PADS> (x, v)
          [fed] z = Conv <PADS> (x, f)
        }""",
        {"w": W},
    )
    result, codes = refolded(model, {"x": data(), "f": W})
    assert codes == {"computed": "weight-not-constant", "fed": "weight-not-constant"}
    assert result == model


def test_a_default_that_a_caller_may_replace_is_refused():
    model = parsed(
        "(float[1, 2, 8, 8] x, float[3, 2, 3, 3] w) => (float[1, 3, 8, 8] y) {"
        "[c] y = Conv <PADS> (x, w) }",
        {"w": W},
    )
    result, codes = refolded(model, {"x": data()}, {"x": data(), "w": 2 * W})
    assert codes == {"c": "weight-overridable"}
    assert result == model
