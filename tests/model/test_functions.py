"""Local functions: what is taken, and what they may grow to."""

from tests.model.checked import BOOL, CALL, accepts, branch, function, if_node, model, node, refuses
from widthfold_onnx.model.functions import MAX_INLINED_NODES


def test_takes_a_local_function():
    accepts(model(CALL, functions=[function("f", [node("Sin", ["a"], ["b"])])]))


def test_refuses_functions_that_call_themselves():
    one = function("f", [node("g", ["a"], ["b"], domain="l")])
    two = function("g", [node("f", ["a"], ["b"], domain="l")])
    refuses(model(CALL, functions=[one, two]), "calls itself")
    alone = function("f", [node("f", ["a"], ["b"], domain="l")])
    refuses(model(CALL, functions=[alone]), "'l::f' calls itself")
    inside = branch("then", [node("f", ["a"], ["t"], domain="l")], "t")
    other = branch("else", [node("Abs", ["a"], ["e"])], "e")
    body = [node("Cast", ["a"], ["k"], to=BOOL), if_node(inside, other, "b", "k")]
    refuses(model(CALL, functions=[function("f", body)]), "calls itself")


def test_bounds_what_functions_grow_to():
    def chain(depth):
        made = []
        for level in range(depth):
            op, domain = (f"f{level + 1}", "l") if level + 1 < depth else ("Sin", "")
            calls = [node(op, [a], [b], domain=domain) for a, b in ("ab", "bc")]
            made.append(function(f"f{level}", calls, outputs=("c",)))
        return model([node("f0", ["X"], ["Y"], domain="l")], functions=made)

    accepts(chain(12))
    refuses(chain(26), f"above {MAX_INLINED_NODES}")


def test_a_long_chain_of_functions_needs_no_stack():
    made = [function(f"f{i}", [node(f"f{i + 1}", ["a"], ["b"], domain="l")]) for i in range(3000)]
    made.append(function("f3000", [node("Sin", ["a"], ["b"])]))
    refuses(model(CALL[:0], functions=made), "'Y' is written by no node")


def test_refuses_a_broken_function_body():
    refuses(model(CALL, functions=[function("f", [node("Sin", ["X"], ["b"])])]), "reads 'X'")
    refuses(model(CALL, functions=[function("f", [])]), "'b' is written by no node")
    refuses(model(CALL, functions=[function("f", [node("No", ["a"], ["b"])])]), "operator 'No'")
    twice = [function("f", [node("Sin", ["a"], ["b"])])] * 2
    refuses(model(CALL, functions=twice), "defined twice")
