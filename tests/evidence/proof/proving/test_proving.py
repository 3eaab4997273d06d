"""A change anywhere in a folded model is found, in bodies and constants as well."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.evidence.mutants.proof import difference
from tests.folding import fold_model
from tests.small_models import build
from widthfold_onnx.evidence.proof.program import Program
from widthfold_onnx.evidence.proof.proving import prove_at_sizes
from widthfold_onnx.options import FoldOptions

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,2,6,16] x, bool b) => (float[1,2,6,16] y)
<float[3,2,3,3] w1, float[3] b1, float[2,3,1,5] w2>
{
    [first] a = Conv <pads = [1,1,1,1]> (x, w1, b1)
    two = Constant <value = float {2.0}> ()
    same = Identity (two)
    r = If (b) <
        then_branch = t () => (float[1,3,6,16] p) { p = Mul (a, same) },
        else_branch = e () => (float[1,3,6,16] q) { q = Relu (a) }
    >
    [second] y = Conv <pads = [0,2,0,2]> (r, w2)
}"""


@pytest.fixture(scope="module")
def pair() -> tuple[onnx.ModelProto, onnx.ModelProto]:
    original = build(TEXT)
    folded, sites = fold_model(original, FoldOptions(factor=4, nodes=("first",)))
    assert "folded" in {site.status for site in sites}
    return original, folded


def changed(model: onnx.ModelProto, change: Callable[[onnx.ModelProto], None]) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    change(copy)
    assert copy != model
    return copy


def test_the_whole_of_a_folded_model_is_equal(
    pair: tuple[onnx.ModelProto, onnx.ModelProto],
) -> None:
    assert difference(*pair) == ""


def one_ulp(model: onnx.ModelProto) -> None:
    tensor = next(t for t in model.graph.initializer if t.name == "w2")
    array = numpy_helper.to_array(tensor).copy()
    array[0] = np.nextafter(array[0], np.float32(np.inf))
    tensor.CopyFrom(numpy_helper.from_array(array, "w2"))


def other_pads(model: onnx.ModelProto) -> None:
    node = model.graph.node[-1]
    pads = next(a for a in node.attribute if a.name == "pads")
    pads.ints[:] = [0, 1, 0, 3]


def other_operator_in_body(model: onnx.ModelProto) -> None:
    branch = next(n for n in model.graph.node if n.op_type == "If").attribute[1].g
    branch.node[0].op_type = "LeakyRelu"


def node_more(model: onnx.ModelProto) -> None:
    model.graph.node.append(onnx.helper.make_node("Neg", ["y"], ["unused"], "more"))


def constant_instead_of_node(model: onnx.ModelProto) -> None:
    node = next(n for n in model.graph.node if n.op_type == "Constant")
    model.graph.node.remove(node)
    model.graph.initializer.append(numpy_helper.from_array(np.array(2.5, np.float32), "two"))


def constant_more(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(3, np.float32), "unused"))


@pytest.mark.parametrize(
    ("change", "value"),
    [
        (one_ulp, "y (node 'second')"),
        (other_pads, "y (node 'second')"),
        (other_operator_in_body, "r ("),
        (constant_instead_of_node, "same ("),
    ],
)
def test_a_change_elsewhere_is_found_and_named(
    pair: tuple[onnx.ModelProto, onnx.ModelProto],
    change: Callable[[onnx.ModelProto], None],
    value: str,
) -> None:
    reason = difference(pair[0], changed(pair[1], change))
    assert reason.startswith(f"different: {value}")


@pytest.mark.parametrize("change", [node_more, constant_more])
def test_what_nobody_reads_is_no_change(
    pair: tuple[onnx.ModelProto, onnx.ModelProto], change: Callable[[onnx.ModelProto], None]
) -> None:
    assert difference(pair[0], changed(pair[1], change)) == ""


@pytest.mark.parametrize("change", [None, one_ulp])
def test_data_in_other_files_are_read(
    tmp_path: Path, change: Callable[[onnx.ModelProto], None] | None
) -> None:
    programs = []
    for name in ("a", "b"):
        model = build(TEXT)
        if change is not None and name == "b":
            change(model)
        folder = tmp_path / name
        folder.mkdir()
        path = folder / "model.onnx"
        onnx.save(model, path, save_as_external_data=True, location="data", size_threshold=0)
        programs.append(Program.of(onnx.load(path, load_external_data=False), folder))
    (proof,) = prove_at_sizes(*programs, ({},), {})
    assert proof.verdict == ("equal" if change is None else "different")
