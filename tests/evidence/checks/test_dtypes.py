"""Element types without a kernel: folded at a fixed factor, proved without a run, and said so."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.cli.tool import widthfold
from tests.folding import fold_model, optimize, verify
from widthfold_onnx.errors import NoKernelError
from widthfold_onnx.evidence import pair
from widthfold_onnx.evidence.integers import EXACT_BELOW
from widthfold_onnx.options import FoldOptions, SearchOptions, VerifyOptions
from widthfold_onnx.results import IntegerRun
from widthfold_onnx.runtime.session import open_session

RNG = np.random.default_rng(17)
TYPES = {"bfloat16": ml_dtypes.bfloat16, "float64": np.float64}
WITHOUT_KERNEL = pytest.mark.parametrize("name", TYPES)


def write(folder: Path, dtype: object, *, scale: float = 2.0) -> Path:
    """x -> Conv -> Mul -> y, all of one element type."""
    weight = RNG.standard_normal((3, 2, 3, 5)).astype(dtype)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w", "b"], ["c"], "conv", pads=[1, 2, 1, 2]),
            helper.make_node("Mul", ["c", "k"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", kind, [1, 2, 7, 8])],
        [helper.make_tensor_value_info("y", kind, [1, 3, 7, 8])],
        [
            numpy_helper.from_array(weight, "w"),
            numpy_helper.from_array(RNG.standard_normal(3).astype(dtype), "b"),
            numpy_helper.from_array(np.full(1, scale).astype(dtype), "k"),
        ],
    )
    opset = helper.make_opsetid("", 22 if dtype == ml_dtypes.bfloat16 else 21)
    path = folder / "in.onnx"
    path.write_bytes(
        helper.make_model(graph, opset_imports=[opset], ir_version=10).SerializeToString()
    )
    return path


@WITHOUT_KERNEL
def test_a_fixed_factor_writes_what_is_proved_and_says_it_was_not_run(name, tmp_path) -> None:
    source, out = write(tmp_path, TYPES[name]), tmp_path / "out.onnx"
    run = widthfold("optimize", source, out, "--factor", 4, "--axis", "width")
    assert run.code == 0
    assert "wrote out.onnx" in run.out
    assert "verdict: unverified; 0 input sets; proof: equal" in run.out
    assert "written without having been run: in.onnx does not load: " in run.out
    assert "NOT_IMPLEMENTED" in run.out
    result = onnx.load(out)
    kinds = {t.data_type for t in result.graph.initializer} - {onnx.TensorProto.INT64}
    assert kinds == {helper.np_dtype_to_tensor_dtype(np.dtype(TYPES[name]))}


@WITHOUT_KERNEL
def test_verify_cannot_verify_and_shows_the_proof(name: str, tmp_path: Path) -> None:
    source, out = write(tmp_path, TYPES[name]), tmp_path / "out.onnx"
    optimize(source, out, FoldOptions(factor=4))
    run = widthfold("verify", source, out, "--details")
    assert run.code == 4
    assert "NOT_IMPLEMENTED" in run.err
    assert "proof: equal: both models compute the same function" in run.out
    assert "both models were evaluated on random whole numbers" in " ".join(run.out.split())


def test_what_it_computes_is_the_same_in_double(tmp_path: Path) -> None:
    """The reference implementation has the kernel that the runtime lacks."""
    source, out = write(tmp_path, np.float64), tmp_path / "out.onnx"
    optimize(source, out, FoldOptions(factor=4))
    x = RNG.standard_normal((1, 2, 7, 8))
    (before,), (after,) = (ReferenceEvaluator(str(p)).run(None, {"x": x}) for p in (source, out))
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-13 * np.abs(before).max())


@WITHOUT_KERNEL
def test_a_planted_fault_is_found_without_a_run(name: str, tmp_path: Path) -> None:
    source, out = write(tmp_path, TYPES[name]), tmp_path / "out.onnx"
    optimize(source, out, FoldOptions(factor=4))
    model = onnx.load(out)
    (conv,) = (node for node in model.graph.node if node.op_type == "Conv")
    weight = next(t for t in model.graph.initializer if t.name == conv.input[1])
    array = numpy_helper.to_array(weight).copy()
    array.flat[np.flatnonzero(array)[:2]] = array.flat[np.flatnonzero(array)[1::-1]]
    weight.CopyFrom(numpy_helper.from_array(array, weight.name))
    out.write_bytes(model.SerializeToString())
    verification = verify(source, out, VerifyOptions(timing=False))
    assert (verification.verdict, verification.unrun) == ("fail", "")
    assert verification.proof is not None
    assert verification.proof.verdict == "different"


@WITHOUT_KERNEL
def test_a_fault_on_integers_is_not_written_where_outputs_are_not_compared(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_on_integers(*_: object) -> IntegerRun:
        return IntegerRun(verdict="different", reason="Conv c: 3 of 9 integers differ")

    monkeypatch.setattr(pair, "run_on_integers", run_on_integers)
    source, out = write(tmp_path, TYPES[name]), tmp_path / "out.onnx"
    report = optimize(source, out, FoldOptions(factor=4))
    assert report.verification is not None
    assert report.verification.verdict == "fail"
    assert "3 of 9 integers differ" in report.verification.reasons[0]
    assert report.written is None
    assert not out.exists()


@WITHOUT_KERNEL
def test_a_change_beside_the_fold_is_not_called_proved(name: str, tmp_path: Path) -> None:
    source, out = write(tmp_path, TYPES[name]), tmp_path / "out.onnx"
    optimize(source, out, FoldOptions(factor=4))
    model = onnx.load(out)
    (scale,) = (t for t in model.graph.initializer if t.name.startswith("k"))
    scale.raw_data = bytes(len(scale.raw_data))
    out.write_bytes(model.SerializeToString())
    verification = verify(source, out, VerifyOptions(timing=False))
    assert verification.verdict in ("fail", "unverified")
    assert verification.unrun == ""


@WITHOUT_KERNEL
def test_auto_writes_nothing_where_nothing_can_be_measured(name: str, tmp_path: Path) -> None:
    source, out = write(tmp_path, TYPES[name]), tmp_path / "out.onnx"
    run = widthfold("optimize", source, out, "--store", tmp_path / "store")
    assert run.code == 4
    assert "NOT_IMPLEMENTED" in run.err
    assert not out.exists()
    planned = optimize(source, None, FoldOptions(), search_options=SearchOptions(measure=False))
    assert [site.code for site in planned.sites] == ["dtype-unmeasured"]


def test_the_runtime_says_that_it_has_no_kernel(tmp_path: Path) -> None:
    with pytest.raises(NoKernelError, match="NOT_IMPLEMENTED"):
        open_session(write(tmp_path, np.float64))
    assert open_session(write(tmp_path, np.float32)).outputs == ["y"]


def test_bounds_are_the_integers_that_a_type_holds_all_of() -> None:
    for name, bound in EXACT_BELOW.items():
        dtype = TYPES.get(name) or np.dtype(name).type
        whole = np.array([bound - 1, bound, bound + 1], np.float64).astype(dtype)
        assert whole.astype(np.float64).tolist()[:2] == [bound - 1, bound]
        assert dtype(bound) + dtype(1) == dtype(bound)


def test_a_fold_in_half_precision_is_run(tmp_path: Path) -> None:
    report = optimize(write(tmp_path, np.float16), tmp_path / "out.onnx", FoldOptions(factor=4))
    assert report.verification is not None
    assert (report.verification.verdict, report.verification.unrun) == ("pass", "")
    assert report.verification.proof is not None
    assert report.verification.proof.verdict == "equal"
    assert report.verification.integers is not None
    assert report.verification.integers.verdict == "exact"


def test_a_scale_that_leaves_bfloat16_is_not_carried(tmp_path: Path) -> None:
    """The runtime may multiply weight and scale beforehand where they stand side by side."""
    for scale, carried in ((2.0, True), (1e38, False)):
        model = onnx.load(write(tmp_path, ml_dtypes.bfloat16, scale=scale))
        model.graph.node.add(op_type="Conv", input=["y", "v"], output=["z"])
        weight = RNG.uniform(4, 8, (2, 3, 1, 3)).astype(ml_dtypes.bfloat16)
        model.graph.initializer.append(numpy_helper.from_array(weight, "v"))
        model.graph.node[2].attribute.append(helper.make_attribute("pads", [0, 1, 0, 1]))
        model.graph.output[0].name = "z"
        model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 2
        weight = numpy_helper.from_array(
            (100 * RNG.uniform(4, 8, (3, 2, 3, 5))).astype(ml_dtypes.bfloat16), "w"
        )
        model.graph.initializer[0].CopyFrom(weight)
        result, _ = fold_model(model, FoldOptions(factor=4, axis=3))
        ops = [node.op_type for node in result.graph.node]
        between = ops[ops.index("Conv") + 1]
        assert (between == "Mul") == carried


def test_padding_that_no_kernel_has_is_proved_and_the_message_asks_for_no_inputs(
    tmp_path: Path,
) -> None:
    """The runtime loads a dilated Conv with SAME padding, and stops at its first run."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1, 2, 12, N] x) => (float[1, 3, 12, N] y) {
        y = Conv <auto_pad = "SAME_UPPER", dilations = [2, 2]> (x, w)
    }"""
    proto = onnx.parser.parse_model(text)
    weight = RNG.integers(-3, 4, (3, 2, 3, 3)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    source, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(proto, source)
    run = widthfold("optimize", source, out, "--factor", 4)
    assert run.code == 0
    assert "written without having been run: in.onnx does not run: " in run.out
    for command in (("optimize", source, out), ("verify", source, source)):
        run = widthfold(*command)
        assert run.code == 4
        assert "no input helps, as the runtime has no kernel for it" in run.err
        assert "--inputs" not in run.err
