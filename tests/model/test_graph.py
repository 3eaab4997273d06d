"""Rewriting in awkward places: the folded model must run as the original does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort  # noqa: TID251 - the tests run what the package made
import pytest
from onnx import helper, numpy_helper

from widthfold_onnx import FoldOptions, InvalidModelError, fold_model
from widthfold_onnx.model.graph import Document

LEVELS = (
    ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
)
RNG = np.random.default_rng(1)
W = RNG.standard_normal((3, 2, 3, 3)).astype(np.float32)
SQUARE = RNG.standard_normal((2, 2, 3, 3)).astype(np.float32)
B = RNG.standard_normal(3).astype(np.float32)
OPTIONS = FoldOptions(factor=2)
PADS = "pads = [1, 1, 1, 1]"
Arrays = Mapping[str, np.ndarray]


def parsed(text: str, constants: Arrays | None = None, opset: int = 17, ir: int = 8):
    model = onnx.parser.parse_model(
        f'<ir_version: {ir}, opset_import: ["" : {opset}]> main {text}'.replace("PADS", PADS)
    )
    for name, array in (constants or {}).items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return model


def outputs(model: onnx.ModelProto, feeds: Arrays, level) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = level
    return ort.InferenceSession(model.SerializeToString(), options).run(None, dict(feeds))


def assert_same(before: onnx.ModelProto, after: onnx.ModelProto, *feeds: Arrays) -> None:
    for fed in feeds:
        for level in LEVELS:
            pairs = zip(outputs(before, fed, level), outputs(after, fed, level), strict=True)
            for first, second in pairs:
                assert first.shape == second.shape
                np.testing.assert_allclose(second, first, rtol=1e-5, atol=1e-5)


def refolded(model: onnx.ModelProto, *feeds: Arrays, options: FoldOptions = OPTIONS):
    """Fold, compare on the runtime, and return the result with the codes of all sites."""
    result, sites = fold_model(model, options)
    assert_same(model, result, *(feeds or [{"x": data()}]))
    return result, {site.node: site.code for site in sites}


def data(*shape: int) -> np.ndarray:
    return np.random.default_rng(2).standard_normal(shape or (1, 2, 8, 8)).astype(np.float32)


def constants(model: onnx.ModelProto) -> list[str]:
    return [tensor.name for tensor in model.graph.initializer]


# --- weights ------------------------------------------------------------------------------------

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


def test_nodes_out_of_order_keep_their_order():
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
    assert ops.index("Relu") < ops.index("Conv") < ops.index("Sigmoid")


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


# --- places -------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("kept", ["outer", "left", "right"])
def test_a_captured_weight_stays_while_one_reads_it(kept):
    model = parsed(BRANCHES, {"w": W})
    result, codes = refolded(model, *both_flags(), options=FoldOptions(factor=2, skip=(kept,)))
    assert codes[kept] == "not-selected"
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


def test_a_loop_whose_state_grows_is_not_folded_by_its_first_size():
    model = parsed(
        """(float[1, 2, 4, 8] x) => (float[a, b, c, d] y) {
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
        }""",
        {"s2": SQUARE},
    )
    _, codes = refolded(model, {"x": data(1, 2, 4, 8)}, options=FoldOptions(factor=4))
    assert codes == {"loop": "folded"}
    _, codes = refolded(model, {"x": data(1, 2, 4, 8)}, options=FoldOptions(factor=4, axis=2))
    assert codes["loop"] != "folded"


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
    assert [site.code for site in sites] == ["unknown-shape"] * 2


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
        Document(model, None)
    assert "\n" not in str(caught.value)
    assert "99" in str(caught.value)


# --- operator sets and open dimensions ----------------------------------------------------------


@pytest.mark.parametrize("opset", range(7, 26))
def test_every_opset_keeps_its_own_forms(opset):
    model = parsed(
        "(float[1, 2, 9, 9] x) => (float[1, 3, 9, 9] y) { [c] y = Conv <PADS> (x, w, b) }",
        {"w": W, "b": B},
        opset,
        ir=8 if opset < 21 else 10,
    )
    for axis in (2, 3):
        options = FoldOptions(factor=4, axis=axis, ragged=True)
        result, codes = refolded(model, {"x": data(1, 2, 9, 9)}, options=options)
        assert codes == {"c": "folded"}
        assert result.opset_import == model.opset_import
        onnx.checker.check_model(result, full_check=True)
        forms = {node.op_type: len(node.input) for node in result.graph.node}
        assert {"Pad", "Slice", "Reshape", "Conv"} <= forms.keys()
        assert forms["Pad"] == (1 if opset < 11 else 2)
        assert forms["Slice"] == (1 if opset < 10 else 4)


def test_an_old_model_declares_its_new_constants():
    model = parsed(
        "(float[1, 2, 8, 8] x, float[3, 2, 3, 3] w) => (float[1, 3, 8, 8] y) {"
        "[c] y = Conv <PADS> (x, w) }",
        {"w": W},
        opset=8,
        ir=3,
    )
    result, codes = refolded(model)
    assert codes == {"c": "folded"}
    assert {t.name for t in result.graph.initializer} <= {v.name for v in result.graph.input}


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("ragged", [False, True])
def test_a_symbolic_batch_runs_at_every_size(ragged, layout):
    width = 9 if ragged else 8
    model = parsed(
        f"(float[N, 2, 5, {width}] x) => (float[N, 3, 5, {width}] y) {{"
        "[c] y = Conv <PADS> (x, w, b) }",
        {"w": W, "b": B},
    )
    options = FoldOptions(factor=4, axis=3, ragged=ragged, layout=layout)
    feeds = [{"x": data(batch, 2, 5, width)} for batch in (0, 1, 2, 7)]
    _, codes = refolded(model, *feeds, options=options)
    assert codes == {"c": "folded"}


def test_a_symbolic_batch_and_height_run_at_every_size_or_are_refused():
    model = parsed(
        "(float[N, 2, h, 8] x) => (float[N, 3, h, 8] y) { [c] y = Conv <PADS> (x, w) }", {"w": W}
    )
    feeds = [{"x": data(n, 2, h, 8)} for n in (1, 2) for h in (1, 4, 5)]
    _, codes = refolded(model, *feeds, options=FoldOptions(factor=4, axis=3))
    assert codes["c"] in ("folded", "several-unknown-extents")
    one = parsed(
        "(float[2, 2, h, 8] x) => (float[2, 3, h, 8] y) { [c] y = Conv <PADS> (x, w) }", {"w": W}
    )
    feeds = [{"x": data(2, 2, h, 8)} for h in (1, 4, 5)]
    _, codes = refolded(one, *feeds, options=FoldOptions(factor=4, axis=3))
    assert codes == {"c": "folded"}


def test_the_long_spelling_of_the_default_domain_is_understood() -> None:
    """The runtime loads it; onnx's own checker does not."""
    model = onnx.load(Path(__file__).parents[2] / "models" / "paper_conv.onnx")
    model.opset_import[0].domain = "ai.onnx"
    for node in model.graph.node:
        node.domain = "ai.onnx"
    folded, (site,) = fold_model(model, FoldOptions(factor=8))
    assert site.status == "folded"
    assert folded.opset_import == model.opset_import
    x = np.random.default_rng(3).standard_normal((1, 1, 32, 64)).astype(np.float32)
    name = model.graph.input[0].name
    before, after = (
        ort.InferenceSession(m.SerializeToString()).run(None, {name: x}) for m in (model, folded)
    )
    np.testing.assert_allclose(after[0], before[0], rtol=0, atol=1e-6)
