"""Properties of every real model of the shared folder."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime  # noqa: TID251 - the tests judge by the runtime itself
import pytest
from onnx import numpy_helper

from tests.cli.tool import widthfold
from tests.folding import optimize
from tests.shared import MODELS, needs_models
from widthfold_onnx.model.proto.walk import operator_of
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.options import DeliveryOptions, FoldOptions, Layout, VerifyOptions
from widthfold_onnx.rewrite.record import FOLD_KEY

SEEDS = 5
FOLDED = {  # by 8, with the defaults: fewer would be a loss, more a pleasant surprise
    "Marabou__cifar_base_kw_simp": 1,
    "Marabou__fc_matMul": 0,
    "Marabou__layer-zoo_conv": 0,
    "onnx2c__mnist8": 1,
}
LARGE = (
    "accelerated_features__xfeat",
    "basic-pitch__nmp",
    "onnxruntime-extensions__pytorch_super_resolution",
)
"""Models whose runs take long."""
LONG_PROOFS = (
    *(*LARGE, "deepfilter-rt__dfn3_enc", "libfacedetection.train__yunet_n_dynamic"),
    "libfacedetection.train__yunet_n_320_320",
    *("silero-vad__silero_vad", "silero-vad__silero_vad_16k_op15"),
)
"""Models that are verified at night, as it takes half a minute; others like them stay."""
ILL_CONDITIONED = ("yunet", "basic-pitch")
"""Models that one rounding moves by more than 1e-5 of an output. Outputs of yunet are like
sigmoid(-16). basic-pitch takes logarithms of spectra near 0: one rounding of its inputs moves it by
3e-5."""

pytestmark = needs_models

by_model = pytest.mark.parametrize("model", MODELS, ids=[path.stem for path in MODELS])


def linear(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Every linear node of a graph and of the graphs inside its nodes."""
    for node in graph.node:
        if operator_of(node) in OPERATORS:
            yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from linear(attribute.g)
            for body in attribute.graphs:
                yield from linear(body)


def all_linear(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    inside = [
        n for function in model.functions for n in function.node if operator_of(n) in OPERATORS
    ]
    return [*linear(model.graph), *inside]


def feeds_of(model: Path, seed: int) -> dict[str, npt.NDArray]:
    """The inputs that the shared folder says the model runs with."""
    listed = json.loads((model.parent / "feeds.json").read_text())[model.name]["feeds"]
    rng = np.random.default_rng(seed)
    feeds = {}
    for name, (dtype, shape) in listed.items():
        if name == "sr":  # a sampling rate; silero knows two of them
            feeds[name] = np.array(16000, dtype)
        else:
            feeds[name] = rng.standard_normal(shape).astype(dtype)
    return feeds


def open_model(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def assert_parity(model: Path, out: Path, seeds: int) -> None:
    """The same interface, and the same outputs within 1e-5 of the largest value of each."""
    before, after = onnx.load(model).graph, onnx.load(out).graph
    stored = {tensor.name for tensor in before.initializer}
    fed = [value for value in before.input if value.name not in stored]
    assert fed == [value for value in after.input if value.name in {v.name for v in fed}]
    assert list(before.output) == list(after.output)
    original, rewritten = open_model(model), open_model(out)
    assert interface(original) == interface(rewritten)
    for seed in range(seeds):
        feeds = feeds_of(model, seed)
        first, second = original.run(None, feeds), rewritten.run(None, feeds)
        noise = [0.0] * len(first)
        if any(word in model.stem for word in ILL_CONDITIONED):
            for end in (np.float32(np.inf), np.float32(-np.inf)):
                shaken = {name: np.nextafter(x, end) for name, x in feeds.items()}
                moved = zip(noise, first, original.run(None, shaken), strict=True)
                noise = [max(own, float(np.abs(a - b).max())) for own, a, b in moved]
        for reference, result, own in zip(first, second, noise, strict=True):
            assert (reference.dtype, reference.shape) == (result.dtype, result.shape)
            assert np.isfinite(reference).all()
            assert np.isfinite(result).all()
            error = np.abs(reference.astype(np.float64) - result).max(initial=0)
            assert error <= max(1e-5 * np.abs(reference).max(initial=0), 10 * own)


def interface(session: onnxruntime.InferenceSession) -> list[list[tuple]]:
    """Names and types; the runtime may infer more about shapes than the file says."""
    ports = (session.get_inputs(), session.get_overridable_initializers(), session.get_outputs())
    return [[(p.name, p.type, len(p.shape)) for p in side] for side in ports]


def test_the_folder_is_the_one_that_these_tests_know() -> None:
    listed = json.loads((MODELS[0].parent / "feeds.json").read_text())
    assert {path.name for path in MODELS} == listed.keys()
    for path in MODELS:
        counts = Counter(n.op_type for n in all_linear(onnx.load(path, load_external_data=False)))
        listed_counts = (listed[path.name]["conv"], listed[path.name]["convt"])
        assert (counts["Conv"], counts["ConvTranspose"]) == listed_counts, path.name


@by_model
def test_optimize_by_8(model: Path, tmp_path: Path) -> None:
    if model.stem in LONG_PROOFS:
        check_by_8(model, tmp_path, "--no-verify")
    else:
        check_by_8(model, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("model", [path for path in MODELS if path.stem in LONG_PROOFS])
def test_what_takes_long_is_verified_by_8(model: Path, tmp_path: Path) -> None:
    check_by_8(model, tmp_path)


def check_by_8(model: Path, tmp_path: Path, *options: str) -> None:
    out, report = tmp_path / "out.onnx", tmp_path / "report.json"
    data = model.read_bytes()
    run = widthfold("optimize", model, out, "--factor", 8, "--report", report, *options)
    assert (run.code, run.err) == (0, "")
    assert model.read_bytes() == data
    document = json.loads(report.read_bytes())
    before = onnx.load(model)
    names = Counter(n.name or f"{n.op_type} -> {n.output[0]}" for n in all_linear(before))
    assert Counter(site["node"] for site in document["sites"]) == names
    folded = [site for site in document["sites"] if site["status"] == "folded"]
    if model.stem in FOLDED:
        assert len(folded) >= FOLDED[model.stem]
    marked = [
        node
        for node in all_linear(onnx.load(out))
        if any(entry.key == FOLD_KEY for entry in node.metadata_props)
    ]
    assert len(marked) == len(folded)
    if not folded:
        assert out.read_bytes() == data
        return

    if not options:
        verification = document["verification"]
        assert verification["verdict"] == "pass"
        assert verification["input_sets"] >= SEEDS
        nodes = Counter(fold["node"] for fold in verification["folds"])
        assert nodes == Counter(site["node"] for site in folded)
        assert verification["proof"]["verdict"] == "equal"
        for row in verification["outputs"]:
            assert row["max_rel"] is None or row["max_rel"] <= row["tolerance"]

    assert_parity(model, out, SEEDS)
    again = tmp_path / "again.onnx"
    assert optimize(out, again, FoldOptions(factor=8), None).summary.folded == 0
    assert again.read_bytes() == out.read_bytes()


@pytest.mark.parametrize(
    "options",
    [
        FoldOptions(factor=2),
        FoldOptions(factor=16, ragged=True, layout=Layout.NHWC),
    ],
    ids=["2", "16 ragged nhwc"],
)
@by_model
def test_other_factors_and_forms(model: Path, options: FoldOptions, tmp_path: Path) -> None:
    """One comparison of our own each; the slow test verifies all combinations."""
    out = tmp_path / "out.onnx"
    report = optimize(model, out, options, None)
    assert report.written == "out.onnx"
    if not report.summary.folded or model.stem in LARGE:
        return
    assert_parity(model, out, 1)


@pytest.mark.slow
@pytest.mark.parametrize("ragged", [False, True], ids=["even", "ragged"])
@pytest.mark.parametrize("layout", [Layout.NCHW, Layout.NHWC])
@pytest.mark.parametrize("factor", [2, 3, 4, 5, 8, 16])
@by_model
def test_every_form_is_verified(
    model: Path, factor: int, layout: Layout, ragged: bool, tmp_path: Path
) -> None:
    out = tmp_path / "out.onnx"
    options = FoldOptions(factor=factor, layout=layout, ragged=ragged)
    report = optimize(model, out, options, VerifyOptions(timing=False))
    assert report.written == "out.onnx", report.verification
    assert_parity(model, out, SEEDS)


TRANSPOSED = {
    "gtcrn__gtcrn_simple": {"folded": 11},
    "deepfilter-rt__dfn3_erb_dec": {"folded": 2},  # behind a Reshape by computed extents
}


@pytest.mark.parametrize("model", [path for path in MODELS if path.stem in TRANSPOSED])
def test_every_conv_transpose_is_folded_or_says_why_not(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    report = optimize(model, out, FoldOptions(factor=3, ragged=True, nodes=("*ConvTranspose*",)))
    sites = [site for site in report.sites if site.op == "ConvTranspose"]
    assert Counter(site.code for site in sites) == TRANSPOSED[model.stem]
    if report.summary.folded:
        assert report.verification is not None
        assert report.verification.verdict == "pass"
        assert report.verification.proof is not None
        assert report.verification.proof.verdict == "equal"
        assert_parity(model, out, SEEDS)


PRODUCTS = {
    ("Marabou__fc_matMul", 5): {
        "MatMul -> matmul0": "folded",
        "MatMul -> matmul1": "folded",
        "MatMul -> matmul2": "constant-product",
        "MatMul -> matmul3": "weight-not-constant",
        "MatMul -> matmul4": "one-position",
        "Gemm -> Y": "one-position",
    },
    ("gtcrn__gtcrn_simple", 3): {
        **dict.fromkeys(("MatMul_26", "MatMul_1757"), "already-wide"),
        **dict.fromkeys(("MatMul_156", "MatMul_346", "MatMul_536"), "one-position"),
        **dict.fromkeys(("MatMul_1114", "MatMul_1351", "MatMul_1588"), "one-position"),
        **dict.fromkeys(("MatMul_712", "MatMul_889"), "folded"),
        # [33, 1, 16]: 33 frequencies of one sample.
        **dict.fromkeys(("MatMul_789", "MatMul_966"), "folded"),
    },
    ("deepfilter-rt__dfn3_enc", 8): {"/lsnr_fc/0/MatMul": "folded"},
    ("deepfilter-rt__dfn3_erb_dec", 8): {},
    ("silero-vad__silero_vad", 8): {},
}
SAMPLES_MAY_MIX = {"Marabou__fc_matMul"}  # its input is a matrix, so its rows are samples


@pytest.mark.parametrize("case", PRODUCTS, ids=[f"{name} by {n}" for name, n in PRODUCTS])
def test_every_product_of_matrices_is_folded_or_refused(case: tuple, tmp_path: Path) -> None:
    """Folds by 8 are verified in test_optimize_by_8."""
    name, factor = case
    model = MODELS[0].with_name(f"{name}.onnx")
    options = FoldOptions(factor=factor, mix_samples=name in SAMPLES_MAY_MIX)
    verification = DeliveryOptions() if factor != 8 else None
    report = optimize(model, tmp_path / "out.onnx", options, verification)
    codes = {site.node: site.code for site in report.sites if site.op in ("MatMul", "Gemm")}
    assert codes == PRODUCTS[case]
    if verification is None:
        return
    assert report.verification is not None
    assert report.verification.proof is not None
    assert report.verification.proof.verdict == "equal"
    folds = {fold.node for fold in report.verification.folds}
    assert {node for node, code in codes.items() if code == "folded"} <= folds


# ---------------------------------------------------------------- stored inputs and outputs

MNIST = next((path for path in MODELS if path.stem == "onnx2c__mnist8"), Path("gone"))


def stored_set(number: int, folder: Path) -> Path:
    """A test_data_set folder as ONNX lays it out."""
    target = folder / f"test_data_set_{number}"
    target.mkdir()
    for kind in ("input", "output"):
        source = MNIST.with_name(f"{MNIST.stem}__set{number}_{kind}_0.pb")
        shutil.copy(source, target / f"{kind}_0.pb")
    return target


def test_mnist_gives_its_stored_outputs(tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    folders = [stored_set(number, tmp_path) for number in range(3)]
    inputs = [part for folder in folders for part in ("--inputs", folder)]
    run = widthfold("optimize", MNIST, out, "--factor", 8, "--require-fold", *inputs)
    assert (run.code, run.err) == (0, "")
    assert "8 input sets" in run.out
    session = open_model(out)
    (port,) = session.get_inputs()
    for folder in folders:
        x, y = (
            numpy_helper.to_array(onnx.TensorProto.FromString((folder / name).read_bytes()))
            for name in ("input_0.pb", "output_0.pb")
        )
        (result,) = session.run(None, {port.name: x})
        assert np.abs(result - y).max() <= 1e-5 * np.abs(y).max()
        assert result.argmax() == y.argmax()


def test_wrong_stored_outputs_fail(tmp_path: Path) -> None:
    """The first model computes them, the second does not."""
    out, folder = tmp_path / "out.onnx", stored_set(0, tmp_path)
    assert widthfold("optimize", MNIST, out, "--factor", 8, "--no-verify").code == 0
    proto = onnx.load(out)
    tensor = next(t for t in proto.graph.initializer if t.name == "Parameter194")
    array = numpy_helper.to_array(tensor) + np.float32(500)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    out.write_bytes(proto.SerializeToString())
    run = widthfold(
        *("verify", MNIST, out, "--no-timing", "--seeds", 0, "--inputs", folder, "--rtol", "1e-2")
    )
    assert run.code == 1
    assert "test_data_set_0: stored output Plus214_Output_0" in run.line
