import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.rewrite.linear import perceptron
from tests.rewrite.products import Product
from widthfold_onnx import FoldOptions, optimize
from widthfold_onnx.evidence import bisect
from widthfold_onnx.evidence.bisect import first_difference
from widthfold_onnx.evidence.models import compare_models, silent
from widthfold_onnx.options import Provider, VerifyOptions
from widthfold_onnx.rewrite.record import FOLD_KEY
from widthfold_onnx.runtime.stored import InputSet

OPTIONS = VerifyOptions(provider=Provider.CPU, seeds=2, truth_budget=0)
NAMES = ("first", "second", "third")
UNFOLDED = FoldOptions(factor=5, axis="width", ragged=True)
"""What is extended and cut does not stay packed, so both models name what each Conv returns."""


def three_convs():
    """x -> first -> Relu -> second -> Relu -> third -> y, each 3 to 3 channels."""
    rng = np.random.default_rng(1)
    nodes, constants, value = [], [], "x"
    for name in NAMES:
        weight = rng.standard_normal((3, 3, 3, 3)).astype(np.float32)
        constants.append(numpy_helper.from_array(weight, f"{name}_w"))
        nodes.append(
            helper.make_node("Conv", [value, f"{name}_w"], [f"{name}_y"], name, pads=[1] * 4)
        )
        nodes.append(helper.make_node("Relu", [f"{name}_y"], [f"{name}_r"], f"{name}_relu"))
        value = f"{name}_r"
    nodes.append(helper.make_node("Tanh", [value], ["y"], "last"))
    ends = [
        helper.make_tensor_value_info(item, TensorProto.FLOAT, [1, 3, 16, 32])
        for item in ("x", "y")
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def pair(tmp_path):
    original, folded = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(three_convs(), original)
    assert optimize(original, folded, UNFOLDED, None).summary.folded == 3
    return original, folded


def plant(path, *names):
    """Change one weight of the folded nodes of these names."""
    model = onnx.load(path)
    for node in model.graph.node:
        if node.name in names and node.op_type in ("Conv", "MatMul"):
            assert any(entry.key == FOLD_KEY for entry in node.metadata_props)
            tensor = next(t for t in model.graph.initializer if t.name == node.input[1])
            array = numpy_helper.to_array(tensor).copy()
            at = np.unravel_index(np.abs(array).argmax(), array.shape)
            array[at] *= np.float32(1.5)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    onnx.save(model, path)


@pytest.mark.parametrize("guilty", [1, 2])
def test_where_tensors_stay_packed_their_end_is_named(tmp_path, guilty):
    """Between them both models have no value in common."""
    original, folded = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(perceptron(21, 5, widths=(7, 3, 2)), original)
    names = [f"matmul{3 * i}" for i in range(3)]
    assert optimize(original, folded, FoldOptions(factor=3), None).summary.folded == 3
    plant(folded, *names[guilty:])
    result = compare_models(original, folded, OPTIONS)
    (line,) = (reason for reason in result.reasons if reason.startswith("first differs at"))
    assert line.startswith("first differs at v8, node 'relu8/widthfold/unfold_reshape': max_rel ")


@pytest.mark.parametrize("guilty", NAMES)
def test_the_first_wrong_value_is_named(pair, guilty):
    plant(pair[1], guilty)
    result = compare_models(*pair, OPTIONS)
    assert result.verdict == "fail"
    (line,) = (reason for reason in result.reasons if reason.startswith("first differs at"))
    assert line.startswith(f"first differs at {guilty}_y, node '{guilty}/widthfold/cut': max_rel ")
    assert line.endswith(("on seed 0, normal", "on seed 1, uniform 0 to 1"))


def test_a_wrong_value_of_a_function_is_named(tmp_path):
    body = helper.make_function(
        "loc",
        "f",
        ["p", "w"],
        ["q"],
        [helper.make_node("Conv", ["p", "w"], ["q"], "inner", pads=[1] * 4)],
        [helper.make_opsetid("", 17)],
    )
    model = three_convs()
    for node in model.graph.node:
        if node.op_type == "Conv":
            del node.attribute[:]
            node.op_type, node.domain = "f", "loc"
    model.functions.append(body)
    model.opset_import.append(helper.make_opsetid("loc", 1))
    original, folded = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(model, original)
    assert optimize(original, folded, UNFOLDED, None).summary.folded == 3
    (site,) = (n for n in onnx.load(folded).graph.node if n.input[1:2] == ["second_w/widthfold"])
    plant(folded, site.name)
    where = f"first differs at second_y, node '{site.name}/widthfold/cut': max_rel "
    assert named((original, folded)).startswith(where)


def test_the_first_of_two_wrong_values_is_named(pair):
    plant(pair[1], "second", "third")
    result = compare_models(*pair, OPTIONS)
    assert any(reason.startswith("first differs at second_y, ") for reason in result.reasons)


def test_a_fold_that_is_right_is_not_bisected(pair):
    result = compare_models(*pair, OPTIONS)
    assert (result.verdict, result.reasons) == ("pass", ())


def named(pair):
    x = np.random.default_rng(0).standard_normal((1, 3, 16, 32)).astype(np.float32)
    return first_difference(*pair, InputSet("here", {"x": x}), OPTIONS, silent)


def test_a_fault_outside_every_fold_is_named(pair):
    model = onnx.load(pair[1])
    (last,) = (node for node in model.graph.node if node.name == "last")
    last.op_type = "Sin"
    onnx.save(model, pair[1])
    assert named(pair).startswith("first differs at y, node 'last': max_rel ")


def test_a_value_of_another_name_is_no_difference(pair):
    model = onnx.load(pair[1])
    assert any("second_y" in node.output for node in model.graph.node)
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = ["moved" if name == "second_y" else name for name in names]
    onnx.save(model, pair[1])
    assert named(pair) == "no value that changed differs by itself: the cause lies elsewhere"
    plant(pair[1], "second")
    assert named(pair).startswith("first differs at third_y, node 'third/widthfold/cut': max_rel ")


def test_nan_is_a_difference(pair):
    model = onnx.load(pair[1])
    tensor = next(t for t in model.graph.initializer if t.name == "third_w/widthfold")
    array = numpy_helper.to_array(tensor).copy()
    array.flat[0] = np.nan
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    onnx.save(model, pair[1])
    assert named(pair) == (
        "first differs at third_y, node 'third/widthfold/cut': NaN or Inf at other places on here"
    )


def test_data_in_other_files_are_found_and_nothing_is_left_behind(pair, tmp_path):
    folder = tmp_path / "external"
    folder.mkdir()
    plant(pair[1], "second")
    moved = []
    for path in pair:
        moved.append(folder / path.name)
        onnx.save(
            onnx.load(path),
            moved[-1],
            save_as_external_data=True,
            location=f"{path.stem}.data",
            size_threshold=0,
        )
    before = sorted(folder.iterdir())
    assert named(moved).startswith("first differs at second_y, ")
    assert sorted(folder.iterdir()) == before


def test_models_too_large_for_memory_are_not_bisected(pair, monkeypatch):
    monkeypatch.setattr(bisect, "MAX_BYTES", 100)
    assert named(pair) == "not bisected: the model has more than 0 MiB"


def inside(model):
    """The same model as the body of an If that is always taken."""
    then, other = onnx.GraphProto(), onnx.GraphProto()
    for branch, name in ((then, "t"), (other, "o")):
        branch.name = name
        branch.node.extend(model.graph.node)
        branch.output.extend(model.graph.output)
        for node in branch.node:
            for names in (node.input, node.output):
                names[:] = [n if n == "x" or n.endswith("_w") else f"{name}_{n}" for n in names]
        branch.output[0].name = f"{name}_y"
    graph = helper.make_graph(
        [helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)],
        "g",
        list(model.graph.input),
        list(model.graph.output),
        [*model.graph.initializer, numpy_helper.from_array(np.array(True), "c")],
    )
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=8)


def test_of_a_subgraph_its_node_is_compared(tmp_path):
    original, folded = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(inside(three_convs()), original)
    report = optimize(original, folded, FoldOptions(factor=4), None)
    assert report.summary.folded == 6
    right = named((original, folded))
    assert right == "no value that changed differs by itself: the cause lies elsewhere"
    model = onnx.load(folded)
    for tensor in model.graph.initializer:
        if tensor.name.startswith("third_w/"):
            array = numpy_helper.to_array(tensor) * np.float32(1.5)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    onnx.save(model, folded)
    found = named((original, folded))
    assert found.startswith("first differs at y, If node of 'y': max_rel "), found


def test_progress_is_told(pair):
    lines = []
    plant(pair[1], "first")
    compare_models(*pair, OPTIONS, report=lines.append)
    assert lines[-1] == "comparing 3 values that changed"


@pytest.mark.parametrize("left", [False, True])
def test_a_folded_product_is_named(left: bool, tmp_path: Path) -> None:
    """Its data may be any of its operands."""
    shape = [3, 24] if left else [24, 3]
    product = Product(shape=shape, weight=[3, 3], left=left, last="Tanh", scale=1.0)
    paths = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(product.model(), paths[0])
    assert optimize(*paths, FoldOptions(factor=4), None).summary.folded == 1
    model = onnx.load(paths[1])
    (weight,) = [tensor for tensor in model.graph.initializer if tensor.name == "w/widthfold"]
    array = numpy_helper.to_array(weight) * np.float32(1.5)
    weight.CopyFrom(numpy_helper.from_array(array, weight.name))
    onnx.save(model, paths[1])
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    found = first_difference(*paths, InputSet("one", {"x": x}), OPTIONS, silent)
    assert re.match(r"first differs at \w+, node 'last/widthfold/\w+': max_rel ", found), found
