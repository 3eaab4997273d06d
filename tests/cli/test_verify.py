from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import jsonschema
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import widthfold_onnx
from tests.cli.tool import MODELS, build, names, on_terminal, process, save, snapshot, widthfold
from tests.reports.sample import timing
from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.models import ModelParity
from widthfold_onnx.evidence.run import _verify
from widthfold_onnx.options import Provider, VerifyOptions
from widthfold_onnx.rewrite.record import FOLD_KEY

SCHEMA = json.loads((Path(widthfold_onnx.__file__).parent / "schemas" / "verify.json").read_text())
QUICK = ("--seeds", "1", "--no-timing")

LAYER = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,2,8,16] x) => (float[1,4,8,16] y) <float[4,2,3,3] w, float[4] b>
{
    [conv] c = Conv <pads = [1,1,1,1]> (x, w, b)
    [relu] y = Relu (c)
}"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A layer, and the same folded by 4 along the width, with copies before and after."""
    folder = tmp_path_factory.mktemp("pair")
    model, out = save(build(LAYER), folder / "model.onnx"), folder / "out.onnx"
    run = widthfold("optimize", model, out, "--factor", 4, "--axis", "width", "--seeds", 1)
    assert run.code == 0
    kinds = [node.op_type for node in onnx.load(out).graph.node]
    assert kinds == ["Reshape", "Transpose", "Conv", "Reshape", "Transpose", "Reshape", "Relu"] or (
        {"Reshape", "Transpose", "Conv"} <= set(kinds)
    )
    return model, out


def report_of(path: Path) -> dict:
    report = json.loads(path.read_bytes())
    jsonschema.validate(report, SCHEMA)
    return report


# ---------------------------------------------------------------- what it says of good pairs


def test_a_pipe_gets_plain_text(pair: tuple[Path, Path], tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    run = process("verify", *pair, "--time-budget", 0.5, "--report", report)
    assert (run.code, run.err) == (0, "")
    assert "\x1b" not in run.out
    lines = run.out.splitlines()
    assert lines[0].split()[:3] == ["output", "runtime", "level"]
    assert [line.split()[:2] for line in lines[1:3]] == [["y", "disabled"], ["y", "all"]]
    assert lines[4].split()[:2] == ["conv", "exact"]
    assert any(line.startswith("time: ") for line in lines)
    assert any(line.startswith("verdict: pass; 5 input sets") for line in lines)
    document = report_of(report)
    assert document.keys() >= {"schema", "outputs", "exact", "timing", "verdict"}
    assert document["schema"] == "widthfold.verify/3"
    for row in document["outputs"]:
        assert row.keys() >= {*("max_abs", "max_rel", "ulp", "cosine", "nonfinite_match", "passed")}
    timing = document["timing"]
    assert timing["provider"] in ("cpu", "cuda")
    assert timing["low"] <= timing["speedup"] <= timing["high"]
    assert str(tmp_path) not in report.read_text()


def test_a_terminal_gets_a_framed_table(pair: tuple[Path, Path]) -> None:
    run = on_terminal("verify", *pair, *QUICK)
    assert run.code == 0
    assert "───" in run.out
    assert "\x1b[32mexact" in run.out
    assert run.out.count("\x1b[?25l") == run.out.count("\x1b[?25h"), "the cursor stays hidden"


def test_a_required_speed_becomes_the_exit_code(pair: tuple[Path, Path], tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    quick = ("--seeds", 1, "--time-budget", 0.5, "--report", report)
    for least, code, verdict in ((1e-4, 0, "pass"), (1e4, 1, "fail")):
        run = widthfold("verify", *pair, *quick, "--fail-under", least)
        assert run.code == code, run
        document = report_of(report)
        assert document["verdict"] == document["timing"]["fail_under_verdict"] == verdict
        assert document["timing"]["fail_under"] == least
        assert [reason.split(":")[0] for reason in document["reasons"]] == (
            [] if verdict == "pass" else ["slower than --fail-under 10000 allows"]
        )


def test_a_model_that_only_stored_inputs_run_is_timed_on_those(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    text = LAYER.replace("float[1,2,8,16] x", "float[256] f, int64[4] s")
    text = text.replace("[conv]", "x = Reshape (f, s)\n    [conv]")
    model, report = save(build(text), tmp_path / "model.onnx"), tmp_path / "report.json"
    stored = tmp_path / "stored.npz"
    np.savez(stored, f=np.arange(256, dtype=np.float32), s=np.array([1, 2, 8, 16]))
    arguments = ("verify", model, model, "--inputs", stored, "--time-budget", 0.5)
    run = widthfold(*arguments, "--report", report)
    assert run.code == 0, run
    document = report_of(report)
    assert document["timing"]["note"].startswith("timed on the stored inputs")
    assert document["timing"]["shapes"] == {"f": [256], "s": [4]}
    assert "1 thread (its processor time), inputs f:256 s:4; " in run.out


def test_a_timing_that_fails_leaves_the_rest_of_the_report(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stops(*arguments: object, **options: object) -> None:
        raise UnverifiedError("the runtime stopped")

    monkeypatch.setattr("widthfold_onnx.evidence.run.time_models", stops)
    options = VerifyOptions(provider=Provider.CPU, seeds=1)
    report = _verify(*pair, options, report=lambda line: None)
    assert report.verdict == "unverified"
    assert report.reasons == ["not timed: the runtime stopped"]
    assert all(row.passed for row in report.outputs)
    assert [site.verdict for site in report.exact] == ["exact"]


def test_what_fails_is_said_before_what_limits(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = ("left out seed 3: it stops",)
    parity = ModelParity(verdict="pass", reasons=limits, limits=limits, input_sets=1)
    monkeypatch.setattr("widthfold_onnx.evidence.run.compare_models", lambda *a, **k: parity)
    monkeypatch.setattr("widthfold_onnx.evidence.run.time_models", lambda *a, **k: timing())
    options = VerifyOptions(provider=Provider.CPU, seeds=1, fail_under=9.0)
    report = _verify(*pair, options, report=lambda line: None)
    assert [reason.split(":")[0] for reason in report.reasons] == [
        "slower than --fail-under 9 allows",
        "left out seed 3",
    ]


@pytest.mark.parametrize(
    "option",
    [
        ("--time-budget", "nan"),
        ("--truth-budget", "nan"),
        ("--truth-budget", "inf"),
        ("--seeds", 2_000_000_000),
        ("--threads", 10**9),
    ],
)
def test_a_number_that_makes_no_sense_is_refused(
    pair: tuple[Path, Path], option: tuple[str, object]
) -> None:
    run = widthfold("verify", *pair, *option)
    assert run.code == 2, run
    assert str(option[0]).strip("-") in run.line


def test_certificates_and_latencies_are_printed_on_request(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    quick = (*pair, "--seeds", 1, "--time-budget", 0.5)
    run = widthfold("verify", *quick, "--exact", "--shared", "--report", report)
    assert (run.code, run.err) == (0, "")
    (site,) = report_of(report)["exact"]
    assert f"conv: {site['fold']}. Proved: {site['reason']}." in run.out.splitlines()
    for part in ("products", "bit for bit", "integers agree"):
        assert part in site["reason"]
    (start,) = (i for i, line in enumerate(run.out.splitlines()) if line.startswith("ms from"))
    rows = run.out.splitlines()[start + 1 :][:16]
    for mark in ("p50", "p90", "p99"):
        assert sum(row.count(mark) for row in rows) == 2
    plain = widthfold("verify", *quick)
    assert "Proved" not in plain.out
    assert "ms from" not in plain.out


def test_the_report_never_replaces_a_model(pair: tuple[Path, Path]) -> None:
    before = snapshot(pair[0].parent)
    for path in pair:
        run = widthfold("verify", *pair, *QUICK, "--report", path)
        assert run.code == 2
        assert "choose another name" in run.line
    assert snapshot(pair[0].parent) == before


def test_a_model_agrees_with_itself(pair: tuple[Path, Path]) -> None:
    for path in pair:
        run = widthfold("verify", path, path, *QUICK)
        assert (run.code, run.err) == (0, "")


def test_a_model_may_be_folded_in_steps(tmp_path: Path) -> None:
    path, middle, out = (tmp_path / f"{name}.onnx" for name in ("model", "middle", "out"))
    save(build(), path)
    for start, end, node in ((path, middle, "first"), (middle, out, "second")):
        run = widthfold("optimize", start, end, "--factor", 4, "--nodes", node, "--seeds", 1)
        assert (run.code, run.err) == (0, "")
        assert "1 of 2 Conv nodes folded" in run.out
    for start, probed in ((path, 2), (middle, 1)):
        run = widthfold("verify", start, out, *QUICK)
        assert (run.code, run.err) == (0, "")
        assert f"{probed} of {probed} rewritten nodes exact" in run.out


def test_an_earlier_fold_that_was_changed_is_different(tmp_path: Path) -> None:
    path, middle, out = (tmp_path / f"{name}.onnx" for name in ("model", "middle", "out"))
    save(build(LAYER), path)
    assert widthfold("optimize", path, middle, "--factor", 4, "--no-verify").code == 0
    proto = onnx.load(middle)
    one_ulp(proto)
    run = widthfold("verify", middle, save(proto, out), *QUICK)
    assert run.code == 1
    assert "conv: " in run.line


# ---------------------------------------------------------------- different models


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[1,1,1,1]> (x, w, b)", "[1,1,1,1]> (x, w)", "output y: max_rel"),
        ("Relu", "Tanh", "output y: max_rel"),
        ("Relu", "Sqrt", "output y: NaN or Inf at other places"),
        ("float[1,4,8,16] y", "float[n,4,8,16] y", "output y has another type or shape"),
        ("float[1,2,8,16] x", "float[1,2,8,q] x", "input x has another type or shape"),
        ("[relu] y = Relu (c)", "[r] z = Relu (c)", "outputs are z instead of y"),
        ("(float[1,2,8,16] x)", "(float[1,2,8,16] x, float s)", "inputs are x, s instead of x"),
    ],
)
def test_two_different_models_fail_and_the_line_names_the_output(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    text = LAYER.replace(old, new)
    if "z =" in new:
        text = text.replace("8,16] y)", "8,16] z)")
    first = save(build(LAYER), tmp_path / "first.onnx")
    second = save(build(text), tmp_path / "second.onnx")
    report = tmp_path / "report.json"
    run = widthfold("verify", first, second, *QUICK, "--report", report)
    assert run.code == 1
    assert words in run.line
    assert "verdict: fail" in run.out
    assert report_of(report)["verdict"] == "fail"


# ---------------------------------------------------------------- tampered folds


def folded_conv(model: onnx.ModelProto) -> onnx.NodeProto:
    (conv,) = (node for node in model.graph.node if node.op_type == "Conv")
    return conv


def initializer(model: onnx.ModelProto, name: str) -> onnx.TensorProto:
    return next(t for t in model.graph.initializer if t.name == name)


def replace(model: onnx.ModelProto, name: str, change: Callable[[np.ndarray], None]) -> None:
    tensor = initializer(model, name)
    array = numpy_helper.to_array(tensor).copy()
    change(array)
    tensor.CopyFrom(numpy_helper.from_array(array, name))


def one_ulp(model: onnx.ModelProto) -> None:
    def change(weight: np.ndarray) -> None:
        at = np.argmin(np.where(weight == 0, np.inf, np.abs(weight)))
        weight.flat[at] = np.nextafter(weight.flat[at], np.float32(9))

    replace(model, folded_conv(model).input[1], change)


def one_ulp_of_bias(model: onnx.ModelProto) -> None:
    def change(bias: np.ndarray) -> None:
        bias[5] = np.nextafter(bias[5], np.float32(9))

    replace(model, folded_conv(model).input[2], change)


def filled_zero(model: onnx.ModelProto) -> None:
    def change(weight: np.ndarray) -> None:
        weight.flat[np.argmin(np.abs(weight))] = 1e-30

    replace(model, folded_conv(model).input[1], change)


def negative_zero(model: onnx.ModelProto) -> None:
    def change(weight: np.ndarray) -> None:
        weight.flat[np.argmin(np.abs(weight))] = -0.0

    replace(model, folded_conv(model).input[1], change)


def swapped_channels(model: onnx.ModelProto) -> None:
    def change(array: np.ndarray) -> None:
        array[[0, 1]] = array[[1, 0]]

    for name in folded_conv(model).input[1:]:
        replace(model, name, change)


def after_conv(model: onnx.ModelProto, kind: str) -> onnx.NodeProto:
    nodes = list(model.graph.node)
    start = nodes.index(folded_conv(model))
    return next(node for node in nodes[start:] if node.op_type == kind)


def swapped_unfold(model: onnx.ModelProto) -> None:
    perm = after_conv(model, "Transpose").attribute[0].ints
    perm[1], perm[2] = perm[2], perm[1]


def other_reshape(model: onnx.ModelProto) -> None:
    def change(dims: np.ndarray) -> None:
        first, second = sorted({d for d in dims.tolist() if d > 1})[:2]
        i, j = dims.tolist().index(first), dims.tolist().index(second)
        dims[i], dims[j] = second, first

    replace(model, after_conv(model, "Reshape").input[1], change)


def impossible_reshape(model: onnx.ModelProto) -> None:
    def change(dims: np.ndarray) -> None:
        dims[1] += 1

    replace(model, after_conv(model, "Reshape").input[1], change)


def dropped_bias(model: onnx.ModelProto) -> None:
    del folded_conv(model).input[2]


def other_pads(model: onnx.ModelProto) -> None:
    (pads,) = (a for a in folded_conv(model).attribute if a.name == "pads")
    pads.ints[0], pads.ints[2] = pads.ints[2] + 1, pads.ints[0] - 1


def rerouted_input(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[0] = "elsewhere"
    node = onnx.helper.make_node("Neg", ["x"], ["elsewhere"], "neg")
    model.graph.node.insert(0, node)


@pytest.mark.parametrize(
    "tamper",
    [
        *(one_ulp, one_ulp_of_bias, filled_zero, negative_zero, swapped_channels, swapped_unfold),
        *(other_reshape, impossible_reshape, dropped_bias, other_pads, rerouted_input),
    ],
)
def test_a_tampered_fold_fails_and_the_probe_names_the_node(
    pair: tuple[Path, Path], tamper: Callable[[onnx.ModelProto], None], tmp_path: Path
) -> None:
    proto = onnx.load(pair[1])
    before = proto.SerializeToString(deterministic=True)
    tamper(proto)
    assert proto.SerializeToString(deterministic=True) != before
    path, report = save(proto, tmp_path / "tampered.onnx"), tmp_path / "report.json"
    run = widthfold("verify", pair[0], path, *QUICK, "--report", report)
    assert run.code == 1
    assert "conv: " in run.line
    document = report_of(report)
    assert [(s["node"], s["verdict"]) for s in document["exact"]] == [("conv", "different")]
    assert document["verdict"] == "fail"


def test_a_fold_of_nothing_is_different(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """The original has no such Conv."""
    proto = onnx.load(pair[1])
    for entry in folded_conv(proto).metadata_props:
        if entry.key == "widthfold.origin":
            entry.value = "nowhere"
    run = widthfold("verify", pair[0], save(proto, tmp_path / "t.onnx"), *QUICK)
    assert run.code == 1
    assert "conv: " in run.line


RECORD = {
    "axis": "width",
    "factor": 4,
    "form": "move blocked",
    "flops_ratio": 1.0,
    "samples": 1,
    "batch": 1,
    "dense": False,
    "digit_major": False,
    "lift": 0,
    "channels": [2, 3],
    "group": 1,
}
KEPT = {"out_digits": 1, "in_digits": 1, "blocked": False, "length": 8}


@pytest.mark.parametrize(
    "record",
    [
        "",
        "null",
        "{}",
        "[" * 100_000,
        '{"axis": 1}',
        {"axes": []},
        {"axes": [KEPT]},
        {"axes": [KEPT] * 40},
        {"axes": [KEPT, {**KEPT, "length": None}]},
        {"axes": [KEPT, {**KEPT, "out_digits": 0, "in_digits": 0}]},
        {"axes": [KEPT, {**KEPT, "out_digits": -4, "in_digits": -4, "length": 16}]},
        {"axes": [KEPT, {**KEPT, "out_digits": 1 << 20, "in_digits": 1 << 20, "length": 1 << 20}]},
        {"axes": [KEPT, {**KEPT, "out_digits": 1 << 62, "in_digits": 1 << 62, "length": 1 << 62}]},
        {"axes": [KEPT, {**KEPT, "length": 1 << 62}]},
        {"axes": [KEPT, {**KEPT, "length": -16}]},
        {"axes": [KEPT, KEPT], "samples": 0},
        {"axes": [KEPT, KEPT], "samples": -1},
        {"axes": [KEPT, KEPT], "samples": 1 << 50},
        {"axes": [KEPT, KEPT], "batch": 0},
        {"axes": [KEPT, KEPT], "batch": -2},
        {"axes": [KEPT, KEPT], "batch": 1 << 40},
        {"axes": [KEPT, KEPT], "batch": 1 << 20, "dense": True},
        {"axes": [KEPT, KEPT], "group": 0},
        {"axes": [KEPT, KEPT], "group": -1},
        {"axes": [KEPT, KEPT], "group": 1 << 40},
        {"axes": [KEPT, KEPT], "channels": [0, 0]},
        {"axes": [KEPT, KEPT], "channels": [-4, -4], "group": 2},
        {"axes": [KEPT, KEPT], "channels": [1, 1]},
        {"axes": [KEPT, KEPT], "channels": [1 << 20, 1 << 20]},
        {"axes": [KEPT, KEPT], "channels": [1 << 62, 1 << 62]},
        {"axes": [KEPT, KEPT], "channels": [1 << 27, 1 << 27], "group": 1 << 27},
        {"axes": [KEPT, KEPT], "axis": "\x1b[2J\n" * 1000, "form": "\x07"},
    ],
)
def test_a_hostile_record_is_no_fault_of_ours(
    pair: tuple[Path, Path], record: str | dict, tmp_path: Path
) -> None:
    text = record if isinstance(record, str) else json.dumps({**RECORD, **record})
    proto = onnx.load(pair[1])
    for entry in folded_conv(proto).metadata_props:
        if entry.key == FOLD_KEY:
            entry.value = text
    path, out = save(proto, tmp_path / "hostile.onnx"), tmp_path / "out.onnx"
    run = process("verify", pair[0], path, *QUICK, timeout=60)
    assert run.code in (1, 3, 4), run
    assert run.line
    run = widthfold("inspect", path)
    assert run.code in (0, 3), run
    assert run.code == 0 or run.line
    assert "\x1b" not in run.out + run.err
    run = widthfold("optimize", path, out, "--factor", 2, *QUICK[:2])
    assert run.code in (0, 3), run
    assert run.code == 0 or run.line


# ---------------------------------------------------------------- inputs and tolerances


def test_stored_inputs(pair: tuple[Path, Path], tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((1, 2, 8, 16)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    np.save(tmp_path / "x.npy", x)
    folder = tmp_path / "test_data_set_0"
    folder.mkdir()
    (folder / "input_0.pb").write_bytes(numpy_helper.from_array(x).SerializeToString())
    for path in (tmp_path / "x.npz", tmp_path / "x.npy", folder):
        run = widthfold("verify", *pair, "--no-timing", "--seeds", 0, "--inputs", path)
        assert (run.code, run.err) == (0, ""), run
        assert "verdict: pass; 1 input set" in run.out


def test_stored_inputs_that_do_not_fit(pair: tuple[Path, Path], tmp_path: Path) -> None:
    x = np.zeros((1, 2, 8, 16), np.float32)
    cases = {
        "shape.npz": {"x": x[..., :8]},
        "rank.npz": {"x": x[0]},
        "dtype.npz": {"x": x.astype(np.float64)},
        "name.npz": {"z": x},
        "more.npz": {"x": x, "z": x},
        "pickled.npz": {"x": np.array([{}], object)},
    }
    for name, arrays in cases.items():
        np.savez(tmp_path / name, **arrays)
    (tmp_path / "text.npz").write_text("hello")
    (tmp_path / "empty.npy").touch()
    (tmp_path / "empty_folder").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "input_0.pb").write_bytes(b"\xff" * 100)
    odd = ("text.npz", "empty.npy", "empty_folder", "broken", "missing.npz", "a\nb\x1b[2J")
    for name in (*cases, *odd):
        run = widthfold("verify", *pair, *QUICK, "--inputs", tmp_path / name)
        assert run.code == 2, (name, run)
        assert "--inputs" in run.line


def test_tolerances(pair: tuple[Path, Path], tmp_path: Path) -> None:
    assert widthfold("verify", *pair, *QUICK, "--rtol", "0").code == 1
    assert widthfold("verify", *pair, *QUICK, "--rtol", "0", "--atol", "1e-3").code == 0
    assert widthfold("verify", *pair, *QUICK, "--rtol", "0", "--rtol", "y:1e-3").code == 0
    assert widthfold("verify", *pair, *QUICK, "--rtol", "y:0", "--rtol", "1e-3").code == 1


@pytest.mark.parametrize(
    ("option", "value"),
    [("--rtol", "nosuch:1e-3"), ("--rtol", "nan"), ("--atol", "-1"), ("--atol", "nan")],
)
def test_a_tolerance_that_means_nothing_is_exit_2(
    pair: tuple[Path, Path], option: str, value: str
) -> None:
    run = widthfold("verify", *pair, *QUICK, option, value)
    assert run.code == 2
    assert run.line


# ---------------------------------------------------------------- what cannot be verified


def test_wrong_usage_is_one_line_and_exit_2(pair: tuple[Path, Path]) -> None:
    for args in (
        (pair[0],),
        (pair[0], pair[0].with_name("gone.onnx")),
        (*pair, "--threads", 0),
        (*pair, "--time-budget", 0),
        (*pair, "--seeds", 0),
        (*pair, "--provider", "npu"),
        (*pair, "--input-shape", "x:2,2,8,16"),
        (*pair, "--input-shape", "q:2"),
        (*pair, "--provider-option", "prefer_nhwc"),
        (*pair, "--provider-option", "=1"),
        (*pair, "--fail-under", "nan"),
        (*pair, "--fail-under", 0),
        (*pair, "--shared", "--no-timing"),
        (*pair, "--shared", "--format", "json"),
        (*pair, "--exact", "--format", "github"),
        (*pair, "--fail-under", 1.0, "--no-timing"),
        (*pair, "--provider", "cpu", "--provider-option", "use_arena=0"),
    ):
        run = widthfold("verify", *args)
        assert run.code == 2, args
        assert run.line


def test_a_random_output_is_unverified(tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[4] x) => (float[4] y) { r = RandomUniformLike (x)
      y = Add (x, r) }"""
    path = save(build(text), tmp_path / "random.onnx")
    run = widthfold("verify", path, path, *QUICK)
    assert run.code == 4
    assert "output y cannot be judged" in run.line


def test_a_model_that_the_runtime_refuses_is_unverified(tmp_path: Path) -> None:
    proto = build(LAYER)
    proto.graph.node[1].domain, proto.graph.node[1].op_type = "com.example", "Own"
    proto.opset_import.add(domain="com.example", version=1)
    path = save(proto, tmp_path / "own.onnx")
    run = widthfold("verify", path, path, *QUICK)
    assert run.code == 4
    assert "own.onnx does not load" in run.line


def test_a_rewritten_model_that_does_not_run_fails(tmp_path: Path) -> None:
    first = save(build(LAYER), tmp_path / "first.onnx")
    proto = build(LAYER)
    proto.graph.node[1].domain, proto.graph.node[1].op_type = "com.example", "Own"
    proto.opset_import.add(domain="com.example", version=1)
    second = save(proto, tmp_path / "second.onnx")
    run = widthfold("verify", first, second, *QUICK)
    assert run.code == 1
    assert "the original runs, the rewritten model does not" in run.line


def test_verify_writes_nothing_but_the_report(pair: tuple[Path, Path], tmp_path: Path) -> None:
    for path in pair:
        shutil.copy(path, tmp_path)
    before = snapshot(tmp_path)
    copies = [tmp_path / path.name for path in pair]
    run = widthfold("verify", *copies, *QUICK, "--report", tmp_path / "r.json")
    assert run.code == 0
    after = snapshot(tmp_path)
    assert {name: entry for name, entry in after.items() if name != "r.json"} == before
    assert names(tmp_path) == ["model.onnx", "out.onnx", "r.json"]


def test_every_model_of_ours_passes_with_itself_folded(tmp_path: Path) -> None:
    for path in sorted(MODELS.glob("*.onnx")):
        out = tmp_path / path.name
        assert widthfold("optimize", path, out, "--factor", 4, "--no-verify").code == 0
        run = widthfold("verify", path, out, *QUICK)
        assert (run.code, run.err) == (0, ""), path.name


# ---------------------------------------------------------------- reports


def test_all_forms_come_from_one_run(pair: tuple[Path, Path], tmp_path: Path) -> None:
    files = [tmp_path / f"r{suffix}" for suffix in (".json", ".xml", ".md", ".html")]
    options = [part for path in files for part in ("--report", path)]
    run = widthfold("verify", *pair, *QUICK, *options, "--format", "github")
    assert (run.code, run.err) == (0, "")
    assert run.out.startswith("widthfold: pass; 1 input set")
    assert run.out.count("\n") == 1
    texts = [path.read_text() for path in files]
    for text in texts:
        assert "widthfold verify model.onnx out.onnx --seeds 1" in text.replace("&#46;", ".")
        assert str(tmp_path) not in text
    assert texts[3].count("<svg") == 4  # the errors at two levels, two pictures of the folded width


def test_an_unknown_suffix_needs_a_form(pair: tuple[Path, Path], tmp_path: Path) -> None:
    path = tmp_path / "report.txt"
    run = widthfold("verify", *pair, *QUICK, "--report", path)
    assert run.code == 2
    assert ".json, .xml, .md, .html" in run.line
    assert widthfold("verify", *pair, *QUICK, "--report", path, "--format", "junit").code == 0
    assert path.read_text().startswith("<?xml")
