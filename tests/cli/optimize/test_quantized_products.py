"""A perceptron on many rows, quantized by the runtime's own tools, through the command line."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort  # noqa: TID251 - the tests run what the package made
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import (  # noqa: TID251 - what users quantize with
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

from tests.cli.tool import widthfold

ROWS, WIDTHS = 96, (3, 5, 2)
KINDS = {
    "dynamic": "MatMulInteger",
    "qdq": "MatMul",
    "qdq_gemm": "Gemm",
    "operator": "QLinearMatMul",
}
"""By the way in which the model is quantized the operator that is folded."""


class Rows(CalibrationDataReader):
    """Data from which a static quantization takes its ranges."""

    def __init__(self) -> None:
        rng = np.random.default_rng(3)
        shape = (ROWS, WIDTHS[0])
        self._left: Iterator[np.ndarray] = iter([rng.standard_normal(shape) for _ in range(4)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        feeds = next(self._left, None)
        return None if feeds is None else {"x": feeds.astype(np.float32)}


def perceptron(*, gemm: bool) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    nodes, tensors, value = [], [], "x"
    for i, (width, outputs) in enumerate(pairwise(WIDTHS)):
        arrays = {
            f"w{i}": rng.standard_normal((width, outputs)),
            f"b{i}": rng.standard_normal(outputs),
        }
        tensors += [numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items()]
        if gemm:
            nodes.append(helper.make_node("Gemm", [value, f"w{i}", f"b{i}"], [f"s{i}"], f"fc{i}"))
        else:
            nodes.append(helper.make_node("MatMul", [value, f"w{i}"], [f"m{i}"], f"fc{i}"))
            nodes.append(helper.make_node("Add", [f"m{i}", f"b{i}"], [f"s{i}"], f"add{i}"))
        nodes.append(helper.make_node("Relu", [f"s{i}"], [f"r{i}"], f"relu{i}"))
        value = f"r{i}"
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, WIDTHS[0]])],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, [ROWS, WIDTHS[-1]])],
        tensors,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("quantized")
    logging.disable(logging.WARNING)  # it advises to optimize the model before
    for gemm in (False, True):
        onnx.save(perceptron(gemm=gemm), folder / f"float{gemm}.onnx")
    paths = {kind: folder / f"{kind}.onnx" for kind in KINDS}
    bits = {"per_channel": True, "reduce_range": True}  # 7, at which no kernel saturates
    quantize_dynamic(folder / "floatFalse.onnx", paths["dynamic"], **bits)
    for kind, form in (
        ("qdq", QuantFormat.QDQ),
        ("qdq_gemm", QuantFormat.QDQ),
        ("operator", QuantFormat.QOperator),
    ):
        quantize_static(
            folder / f"float{kind == 'qdq_gemm'}.onnx",
            paths[kind],
            Rows(),
            quant_format=form,
            activation_type=QuantType.QInt8,
            weight_type=QuantType.QInt8,
            **bits,
        )
    logging.disable(logging.NOTSET)
    return paths


def outputs(path: Path, folder: Path, x: np.ndarray) -> tuple[list[np.ndarray], list[str]]:
    """Outputs of a model as it is deployed, and the operators that the runtime makes of it."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    session = ort.InferenceSession(path, options)
    nodes = onnx.load(folder / "optimized.onnx").graph.node
    return session.run(None, {"x": x}), [node.op_type for node in nodes]


@pytest.mark.parametrize("kind", KINDS)
def test_from_inspect_to_verify(kind: str, models: dict[str, Path], tmp_path: Path) -> None:
    model, out, report = models[kind], tmp_path / "out.onnx", tmp_path / "report.json"
    shown = widthfold("inspect", model, "--factor", 8)
    assert shown.code == 0
    assert f"2 {KINDS[kind]}" in shown.out
    assert shown.out.count("rows by 8") == 2
    assert widthfold("optimize", model, "--factor", 8).code == 0
    assert widthfold("optimize", model, "--factor", 8, "--check").code == 1
    assert not out.exists()
    quick = ("--provider", "cpu", "--seeds", 2)
    done = widthfold("optimize", model, out, "--factor", 8, "--report", report, *quick)
    assert done.code == 0, done.err
    assert f"2 of 2 {KINDS[kind]} nodes folded" in done.out
    assert {site["spread"] for site in json.loads(report.read_text())["sites"]} <= {1.0, None}
    checked = widthfold("verify", model, out, "--no-timing", "--truth-work", 0, *quick)
    assert checked.code == 0, checked.out + checked.err
    assert "proof: equal" in checked.out
    x = np.random.default_rng(7).standard_normal((ROWS, WIDTHS[0])).astype(np.float32)
    (before, kernels), (after, folded) = (outputs(path, tmp_path, x) for path in (model, out))
    for first, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(other, first, strict=True)
    if kind != "dynamic":  # a DynamicQuantizeMatMul is two operators when a Reshape lies between
        assert sorted(folded) == sorted([*kernels, *["Reshape"] * 4])
    assert widthfold("optimize", out, "--factor", 8, "--check").code == 0, "nothing is left to fold"


@pytest.mark.parametrize("kind", ["dynamic", "qdq"])
def test_its_layers_are_measured(kind: str, models: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    store = ("--store", tmp_path / "store.sqlite")
    quick = ("--provider", "cpu", "--seeds", 1, "--time-budget", 1)
    run = widthfold("optimize", models[kind], out, *quick, *store)
    assert run.code == 0, run.err
    assert "forms of 2 layers" in run.err + run.out
    assert "dtype-unmeasured" not in run.out
