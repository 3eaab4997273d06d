"""Large models: the memory of the tool stays below its limits, its time does not blow up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort  # noqa: TID251 - the tests run what the package made
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.cli.tool import measured
from tests.folding import fold_model
from tests.shared import MODELS, needs_models
from widthfold_onnx.model.shapes import table
from widthfold_onnx.options import FoldOptions

SIDE = 1024
SQUARES = 560
CONVS = 3


def peak_of(folder: Path, *args: object) -> float:
    """Run the command in a process of its own, which must end with 0; return its peak in MiB."""
    run = measured(*args, folder=folder, timeout=1800)
    assert run.code == 0, run.err
    return run.megabytes


def chain(nodes: int, every: int) -> onnx.ModelProto:
    """A chain of `nodes` nodes; each `every`-th is a Conv, and none if `every` is 0."""
    rng = np.random.default_rng(0)
    protos, weights, current = [], [], "x"
    for i in range(nodes):
        if every and i % every == 0:
            weight = rng.standard_normal((4, 4, 3, 3)).astype(np.float32)
            weights.append(numpy_helper.from_array(weight, f"w{i}"))
            node = helper.make_node("Conv", [current, f"w{i}"], [f"v{i}"], pads=[1, 1, 1, 1])
        else:
            node = helper.make_node("Relu", [current], [f"v{i}"])
        node.name = f"node{i}"
        protos.append(node)
        current = f"v{i}"
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4, 16, 16])
        for name in ("x", current)
    ]
    graph = helper.make_graph(protos, "g", ports[:1], ports[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("every", [100, 0], ids=["500 Convs", "no Conv"])
@pytest.mark.slow
def test_fifty_thousand_nodes(tmp_path, every):
    path, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    path.write_bytes(chain(50_000, every).SerializeToString())
    assert peak_of(tmp_path, "optimize", path, out, "--factor", 8, "--no-verify") < 1000
    convs = [n for n in onnx.load(out).graph.node if n.op_type == "Conv"]
    assert all("/widthfold/" in n.output[0] for n in convs)
    assert len(convs) == (500 if every else 0)


def test_shapes_are_inferred_once_however_many_sites(monkeypatch):
    calls = []
    derivation = table.Derivation
    monkeypatch.setattr(table, "Derivation", lambda *args: calls.append(1) or derivation(*args))
    _, sites = fold_model(chain(40, 2), FoldOptions(factor=8))
    assert [site.status for site in sites] == ["folded"] * 20
    assert len(calls) == 1


def large_model(folder: Path, squares: int) -> Path:
    """Some Convs, then a long line of MatMuls; all weights in one external file."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    square = np.linalg.qr(rng.standard_normal((SIDE, SIDE)))[0].astype(np.float32)
    nodes, tensors, current = [], [], "x"
    with (folder / "weights.bin").open("wb") as file:

        def store(name: str, array: np.ndarray) -> None:
            tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=array.shape)
            tensor.data_location = TensorProto.EXTERNAL
            place = {"location": "weights.bin", "offset": file.tell(), "length": array.nbytes}
            for key, value in place.items():
                tensor.external_data.add(key=key, value=str(value))
            file.write(array.data)
            tensors.append(tensor)

        for i in range(CONVS):
            store(f"k{i}", rng.standard_normal((4, 4, 3, 3)).astype(np.float32) / 6)
            nodes.append(
                helper.make_node(
                    "Conv", [current, f"k{i}"], [f"c{i}"], f"conv{i}", pads=[1, 1, 1, 1]
                )
            )
            current = f"c{i}"
        nodes.append(helper.make_node("Reshape", [current, "row"], ["r"]))
        current = "r"
        for i in range(squares):
            store(f"m{i}", square)
            nodes.append(helper.make_node("MatMul", [current, f"m{i}"], [f"p{i}"]))
            current = f"p{i}"
    tensors.append(numpy_helper.from_array(np.int64([1, SIDE]), "row"))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 16, 16])],
        [helper.make_tensor_value_info(current, TensorProto.FLOAT, [1, SIDE])],
        tensors,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def result(path: Path) -> np.ndarray:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    x = np.random.default_rng(3).standard_normal((1, 4, 16, 16)).astype(np.float32)
    return ort.InferenceSession(str(path), options).run(None, {"x": x})[0]


def assert_external_and_equal(path: Path, out: Path) -> None:
    model = onnx.load(out, load_external_data=False)
    convs = [node for node in model.graph.node if node.op_type == "Conv"]
    assert len(convs) == CONVS
    external = {t.name for t in model.graph.initializer if t.external_data}
    assert {node.input[1] for node in convs} <= external
    assert {n.input[1] for n in model.graph.node if n.op_type == "MatMul"} <= external
    assert out.stat().st_size < 1 << 20
    np.testing.assert_allclose(result(out), result(path), rtol=0, atol=1e-4)


@pytest.mark.parametrize("same_folder", [True, False], ids=["same folder", "other folder"])
def test_external_data_stay_external(tmp_path, same_folder):
    path = large_model(tmp_path / "in", 2)
    out = (path.parent if same_folder else tmp_path) / "out.onnx"
    peak_of(tmp_path, "optimize", path, out, "--factor", 8, "--no-verify")
    assert_external_and_equal(path, out)


@pytest.mark.slow
def test_more_than_two_gigabytes_of_external_data(tmp_path):
    path = large_model(tmp_path / "in", SQUARES)
    try:
        assert (path.parent / "weights.bin").stat().st_size > 2.3e9
        for folder in (path.parent, tmp_path):
            out = folder / "out.onnx"
            assert peak_of(tmp_path, "optimize", path, out, "--factor", 8, "--no-verify") < 600
            assert_external_and_equal(path, out)
            for file in folder.glob("out.onnx*"):
                file.unlink()
    finally:
        (path.parent / "weights.bin").unlink()


@needs_models
@pytest.mark.slow
@pytest.mark.parametrize("path", MODELS, ids=[path.stem for path in MODELS])
def test_no_real_model_takes_time_without_bounds(path, tmp_path):
    peak_of(tmp_path, "optimize", path, tmp_path / "out.onnx", "--factor", 8)
