"""Rewriting in awkward places: the folded model must run as the original does."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.folding import fold_model
from tests.model.refolded import OPTIONS, SQUARE, B, W, constants, data, parsed, refolded
from widthfold_onnx import InvalidModelError
from widthfold_onnx.model.document import Document
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.options import FoldOptions


def test_two_convs_in_a_row_from_input_to_output():
    model = parsed(
        """(float[1, 2, 8, 8] x) => (float[1, 3, 8, 8] y) {
          [one] c = Conv <PADS> (x, s)
          [two] y = Conv <PADS> (c, w, b)
        }""",
        {"s": SQUARE, "w": W, "b": B},
    )
    _, codes = refolded(model)
    assert set(codes.values()) == {"folded"}


def test_an_output_that_is_read_again_and_listed():
    model = parsed(
        """(float[1, 2, 8, 8] x) => (float[1, 3, 8, 8] c, float[1, 3, 8, 8] y) {
          [conv] c = Conv <PADS> (x, w)
          y = Add (c, c)
        }""",
        {"w": W},
    )
    _, codes = refolded(model)
    assert codes == {"conv": "folded"}


BRANCHES = """(float[1, 2, 8, 8] x, bool flag) => (float[1, 3, 8, 8] y) {
  [outer] c = Conv <PADS> (x, w)
  [if] y = If (flag) <
    then_branch = then () => (float[1, 3, 8, 8] t) {
      [left] k = Conv <PADS> (x, w)
      t = Add (k, c)
    },
    else_branch = else () => (float[1, 3, 8, 8] e) {
      [right] k = Conv <PADS> (x, w)
      e = Sub (k, c)
    }
  >
}"""


def test_a_body_sees_the_extents_of_its_values_and_of_those_around_it():
    document = Document(parsed(BRANCHES, {"w": W}), None, ())
    ((scope, add),) = document.nodes([("", "Add")])
    assert [document.dims(scope.graph, value) for value in add.inputs] == [(1, 3, 8, 8)] * 2


def both_flags() -> list[dict[str, np.ndarray]]:
    return [{"x": data(), "flag": np.array(flag)} for flag in (True, False)]


def test_branches_that_capture_a_weight_and_use_the_same_names():
    model = parsed(BRANCHES, {"w": W})
    result, codes = refolded(model, *both_flags())
    assert codes == dict.fromkeys(("outer", "left", "right"), "folded")
    assert "w" not in constants(result)
    assert sum(name.startswith("w/") for name in constants(result)) == 1
    names = [
        name
        for graph in (result.graph, *(a.g for a in result.graph.node[-1].attribute))
        for node in graph.node
        for name in (node.name, *node.output)
        if "/widthfold" in name
    ]
    nodes = {node.name for node in result.graph.node}
    assert nodes
    assert len([n for n in names if names.count(n) > 2]) == 0


@pytest.mark.parametrize("is_read", ["outer", "left", "right"])
def test_a_captured_weight_stays_while_one_reads_it(is_read):
    model = parsed(BRANCHES, {"w": W})
    result, codes = refolded(model, *both_flags(), options=FoldOptions(factor=2, skip=(is_read,)))
    assert codes[is_read] == "not-selected"
    assert "w" in constants(result)


def test_a_weight_inside_a_branch_stays_inside():
    model = parsed(
        """(float[1, 2, 8, 8] x, bool flag) => (float[1, 3, 8, 8] y) {
          y = If (flag) <
            then_branch = then () => (float[1, 3, 8, 8] t)
              { [left] t = Conv <PADS> (x, v) },
            else_branch = else () => (float[1, 3, 8, 8] e)
              { [right] e = Conv <PADS> (x, v) }
          >
        }"""
    )
    for i, attribute in enumerate(model.graph.node[0].attribute):
        attribute.g.initializer.append(numpy_helper.from_array(W * (i + 1), "v"))
    result, codes = refolded(model, *both_flags())
    assert codes == {"left": "folded", "right": "folded"}
    inner = [{t.name for t in a.g.initializer} for a in result.graph.node[0].attribute]
    assert not inner[0] & inner[1]
    assert not any("v" in names for names in inner)
    assert not result.graph.initializer


def test_loop_and_scan_bodies():
    model = parsed(
        """(float[1, 2, 8, 8] x) => (float[1, 2, 8, 8] y, float[3, 2, 8, 8] z) {
          n = Constant <value = int64 {3}> ()
          go = Constant <value = bool {1}> ()
          y = Loop (n, go, x) <
            body = turn (int64 i, bool on, float[1, 2, 8, 8] s)
              => (bool more, float[1, 2, 8, 8] r) {
              more = Identity (on)
              [loop] r = Conv <PADS> (s, s2)
            }
          >
          xs = Concat <axis = 0> (x, x, x)
          z = Scan <num_scan_inputs = 1,
            body = step (float[2, 8, 8] row) => (float[2, 8, 8] out) {
              axis = Constant <value = int64[1] {0}> ()
              wide = Unsqueeze (row, axis)
              [scan] got = Conv <PADS> (wide, s2)
              out = Squeeze (got, axis)
            }
          > (xs)
        }""",
        {"s2": SQUARE},
    )
    _, codes = refolded(model)
    assert codes == {"loop": "folded", "scan": "folded"}


@pytest.mark.parametrize(("declared", "rows"), [("4", 4), ("r", 4), ("r", 3)])
def test_a_loop_whose_state_grows_is_not_folded_by_its_first_size(declared: str, rows: int) -> None:
    """Of 4, 8, 16 rows every turn is folded; of 3, 6, 12 rows the last one is."""
    model = parsed(
        """(float[1, 2, ROWS, 8] x) => (float[a, b, c, d] y) {
          n = Constant <value = int64 {3}> ()
          go = Constant <value = bool {1}> ()
          y = Loop (n, go, x) <
            body = turn (int64 i, bool on, float[p, q, h, 8] s)
              => (bool more, float[p, q, h2, 8] r) {
              more = Identity (on)
              [loop] k = Conv <PADS> (s, s2)
              r = Concat <axis = 2> (k, s)
            }
          >
        }""".replace("ROWS", declared),
        {"s2": SQUARE},
    )
    x = {"x": data(1, 2, rows, 8)}
    for options, is_guarded in (
        (FoldOptions(factor=4), False),
        (FoldOptions(factor=4, axis=2), True),
    ):
        folded, codes = refolded(model, x, options=options)
        assert codes == {"loop": "folded"}
        (loop,) = (node for node in folded.graph.node if node.op_type == "Loop")
        ops = [node.op_type for node in loop.attribute[0].g.node]
        assert ("If" in ops) == is_guarded


def test_names_that_are_taken():
    model = parsed(
        """(float[1, 2, 8, 8] x) => (float[1, 3, 8, 8] y) {
          a = Relu (x)
          b = Neg (a)
          [c] d = Conv <PADS> (b, w)
          y = Relu (d)
        }""",
        {"w": W, "w/widthfold": np.float32(1)},
    )
    model.graph.node[0].name = "c/widthfold/fold_reshape"
    model.graph.node[1].output[0] = model.graph.node[2].input[0] = "c/widthfold/conv"
    model.graph.value_info.append(
        helper.make_tensor_value_info("c/widthfold/fold_transpose", 1, [7])
    )
    result, codes = refolded(model)
    assert codes == {"c": "folded"}
    names = [name for node in result.graph.node for name in {node.name, *node.output} if name]
    assert len(names) == len(set(names))
    assert "c/widthfold/fold_transpose" not in names


def test_nodes_without_names():
    model = parsed(
        """(float[1, 2, 8, 8] x) => (float[1, 3, 8, 8] y, float[1, 3, 8, 8] z) {
          y = Conv <PADS> (x, w)
          z = Conv <PADS> (x, w)
        }""",
        {"w": W},
    )
    result, codes = refolded(model)
    assert codes == {"Conv -> y": "folded", "Conv -> z": "folded"}
    convs = [node for node in result.graph.node if node.op_type == "Conv"]
    assert [node.name for node in convs] == ["", ""]
    assert {n.name.split("/")[0] for n in result.graph.node if n.name} == {"y", "z"}


def test_two_nodes_without_used_outputs_do_not_share_shapes():
    """Bodies that cannot be told apart are not folded by each other's shapes."""
    model = parsed(
        """(float[1, 2, 8, 8] x, float[1, 2, 6, 6] small) => (float[1, 2, 8, 8] y) {
          n = Constant <value = int64 {2}> ()
          go = Constant <value = bool {1}> ()
          y = Relu (x)
        }""",
        {"w": W},
    )
    for source in ("x", "small"):
        body = onnx.parser.parse_graph(
            "turn (int64 i, bool on) => (bool more) {"
            f"more = Identity (on)\n c = Conv <pads = [1, 1, 1, 1]> ({source}, w) }}"
        )
        model.graph.node.append(helper.make_node("Loop", ["n", "go"], [""], body=body))
    _, sites = fold_model(model, FoldOptions(factor=4))
    assert [site.code for site in sites] == ["same-name"] * 2


def test_a_second_run_changes_nothing():
    model = parsed(BRANCHES, {"w": W})
    once, _ = refolded(model, *both_flags())
    twice, sites = fold_model(once, OPTIONS)
    assert twice == once
    assert {site.code for site in sites} == {"already-folded"}


def test_what_the_library_cannot_read_at_all_is_one_line():
    model = parsed("(float[1, 2, 8, 8] x) => (float[1, 2, 8, 8] y) { y = Relu (x) }")
    model.graph.input[0].type.tensor_type.elem_type = 99
    with pytest.raises(InvalidModelError) as caught:
        Document(model, None, OPERATORS)
    assert "\n" not in str(caught.value)
    assert "99" in str(caught.value)
