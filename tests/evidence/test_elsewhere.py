"""What the proofs of single sites add up to holds only where the rest of the model is the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.cli.tool import build, save
from widthfold_onnx import FoldOptions, Provider, VerifyOptions, optimize
from widthfold_onnx.evidence.exact import probe_sites

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


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    before, after = tmp_path / "before.onnx", tmp_path / "after.onnx"
    save(build(TEXT), before)
    options = FoldOptions(factor=4, nodes=("first",))
    assert optimize(before, after, options, None).summary.folded == 1
    return before, after


def limits(pair: tuple[Path, Path]) -> list[str]:
    sites, found = probe_sites(*pair, VerifyOptions(provider=Provider.CPU), lambda line: None)
    assert [site.verdict for site in sites] == ["exact"]
    return found


def test_the_rest_of_a_folded_model_is_the_same(pair: tuple[Path, Path]) -> None:
    assert limits(pair) == []


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
    ("change", "place"),
    [
        (one_ulp, "constant 'w2'"),
        (other_pads, "node 'second'"),
        (other_operator_in_body, "node 'q'"),
        (node_more, "node 'more'"),
        (constant_instead_of_node, "constant 'two'"),
    ],
)
def test_a_change_elsewhere_limits_the_proof(
    pair: tuple[Path, Path], change: Callable[[onnx.ModelProto], None], place: str
) -> None:
    model = onnx.load(pair[1])
    change(model)
    save(model, pair[1])
    (limit,) = limits(pair)
    assert limit.startswith("the models differ outside the folds (")
    assert place in limit


def test_a_constant_that_nobody_reads_is_no_change(pair: tuple[Path, Path]) -> None:
    model = onnx.load(pair[1])
    constant_more(model)
    save(model, pair[1])
    assert limits(pair) == []


@pytest.mark.parametrize("change", [None, one_ulp])
def test_data_in_other_files_are_read(
    tmp_path: Path, change: Callable[[onnx.ModelProto], None] | None
) -> None:
    paths = []
    for name in ("a", "b"):
        model = build(TEXT)
        if change is not None and name == "b":
            change(model)
        folder = tmp_path / name
        folder.mkdir()
        path = folder / "model.onnx"
        onnx.save(model, path, save_as_external_data=True, location="data", size_threshold=0)
        paths.append(path)
    out = tmp_path / "b" / "out.onnx"
    optimize(paths[1], out, FoldOptions(factor=4, nodes=("first",)), None)
    assert len(limits((paths[0], out))) == (change is not None)
