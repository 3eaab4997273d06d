"""Local functions that are accepted or refused, and the bound of their inlined size."""

import onnx
import pytest

from tests.model.checked import BOOL, CALL, accepts, branch, function, if_node, model, node, refuses
from widthfold_onnx.model.proto.functions import MAX_INLINED_NODES, inline_holders
from widthfold_onnx.operators import OPERATORS


def test_takes_a_local_function():
    accepts(model(CALL, functions=[function("f", [node("Sin", ["a"], ["b"])])]))


def test_refuses_functions_that_call_themselves():
    first = function("f", [node("g", ["a"], ["b"], domain="l")])
    two = function("g", [node("f", ["a"], ["b"], domain="l")])
    refuses(model(CALL, functions=[first, two]), "calls itself")
    alone = function("f", [node("f", ["a"], ["b"], domain="l")])
    refuses(model(CALL, functions=[alone]), "'l::f' calls itself")
    inside = branch("then", [node("f", ["a"], ["t"], domain="l")], "t")
    other = branch("else", [node("Abs", ["a"], ["e"])], "e")
    body = [node("Cast", ["a"], ["k"], to=BOOL), if_node(inside, other, "b", "k")]
    refuses(model(CALL, functions=[function("f", body)]), "calls itself")


def test_bounds_what_functions_grow_to():
    def chain(depth):
        functions = []
        for level in range(depth):
            op, domain = (f"f{level + 1}", "l") if level + 1 < depth else ("Sin", "")
            calls = [node(op, [a], [b], domain=domain) for a, b in ("ab", "bc")]
            functions.append(function(f"f{level}", calls, outputs=("c",)))
        return model([node("f0", ["X"], ["Y"], domain="l")], functions=functions)

    accepts(chain(12))
    refuses(chain(26), f"above {MAX_INLINED_NODES}")


def test_a_long_chain_of_functions_needs_no_stack():
    functions = [
        function(f"f{i}", [node(f"f{i + 1}", ["a"], ["b"], domain="l")]) for i in range(3000)
    ]
    functions.append(function("f3000", [node("Sin", ["a"], ["b"])]))
    refuses(model(CALL[:0], functions=functions), "'Y' is written by no node")


def test_refuses_a_broken_function_body():
    refuses(model(CALL, functions=[function("f", [node("Sin", ["X"], ["b"])])]), "reads 'X'")
    refuses(model(CALL, functions=[function("f", [])]), "'b' is written by no node")
    refuses(model(CALL, functions=[function("f", [node("No", ["a"], ["b"])])]), "operator 'No'")
    twice = [function("f", [node("Sin", ["a"], ["b"])])] * 2
    refuses(model(CALL, functions=twice), "defined twice")


def test_what_a_call_leaves_out_is_inlined_with_its_default() -> None:
    """onnx's inliner drops a default, and the operator's own one would be taken."""
    calls = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17, "loc": 1]>
        g (float[1, 2, 5, 8] x) => (float[1, 3, 5, 8] y, float[1, 3, 5, 8] z)
        <float[3, 2, 1, 1] w = {1, 2, 3, 4, 5, 6}>
        { y = loc.F (x, w)  z = loc.F <alpha = 0.5> (x, w) }
        <domain: "loc", opset_import: ["": 17]> F <alpha: float = 0.3> (a, b) => (c)
        { d = Conv (a, b)  c = LeakyRelu <alpha: float = @alpha> (d) }""")
    result, why = inline_holders(calls, OPERATORS)
    assert why == ""
    assert not result.functions
    slopes = [node.attribute[0].f for node in result.graph.node if node.op_type == "LeakyRelu"]
    assert slopes == [pytest.approx(0.3), pytest.approx(0.5)]
