"""Verdicts of `verify` on pairs of models, and its reports."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.cli.tool import QUICK, on_terminal, snapshot, verify_report, widthfold
from tests.reports.sample import timing
from tests.small_models import LAYER, build, save
from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.checks import verification_of
from widthfold_onnx.evidence.findings import Findings
from widthfold_onnx.evidence.parity.comparison import ModelParity
from widthfold_onnx.model.loader import load
from widthfold_onnx.options import Provider, VerifyOptions
from widthfold_onnx.runtime.session import resolved

# ---------------------------------------------------------------- output for good pairs


def test_a_pipe_gets_plain_text(pair: tuple[Path, Path], tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    run = widthfold("verify", *pair, "--time-budget", 0.5, "--report", report)
    assert (run.code, run.err) == (0, "")
    assert "\x1b" not in run.out
    lines = run.out.splitlines()
    assert lines[0].split()[:3] == ["output", "runtime", "level"]
    assert [line.split()[:2] for line in lines[1:3]] == [["y", "disabled"], ["y", "all"]]
    assert lines[3].split() == ["model", "original", "rewritten"]
    assert any(line.startswith("time: ") for line in lines)
    (verdict,) = (line for line in lines if line.startswith("verdict: "))
    assert verdict.startswith("verdict: pass; 5 input sets")
    assert "; proof: equal; 1 new node exact on integers" in verdict
    document = verify_report(report)
    assert document.keys() >= {"schema", "outputs", "proof", "folds", "timing", "verdict"}
    assert document["schema"] == "widthfold.verify/8"
    for row in document["outputs"]:
        assert row.keys() >= {*("max_abs", "max_rel", "movement", "nonfinite_match", "passed")}
    timing = document["timing"]
    assert timing["provider"] in ("cpu", "cuda")
    assert timing["low"] <= timing["speedup"] <= timing["high"]
    assert str(tmp_path) not in report.read_text()


def test_a_terminal_gets_a_framed_table(pair: tuple[Path, Path]) -> None:
    run = on_terminal("verify", *pair, *QUICK)
    assert run.code == 0
    assert "───" in run.out
    assert "\x1b[1;32mpass" in run.out
    assert run.out.count("\x1b[?25l") == run.out.count("\x1b[?25h"), "the cursor stays hidden"


def test_a_required_speed_becomes_the_exit_code(pair: tuple[Path, Path], tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    quick = ("--seeds", 1, "--time-budget", 0.5, "--report", report)
    for least, code, verdict in ((1e-4, 0, "pass"), (1e4, 1, "fail")):
        run = widthfold("verify", *pair, *quick, "--fail-under", least)
        assert run.code == code, run
        document = verify_report(report)
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
    document = verify_report(report)
    assert document["timing"]["note"].startswith("timed on the stored inputs")
    assert document["timing"]["shapes"] == {"f": [256], "s": [4]}
    assert "1 thread (its processor time), inputs f:256 s:4; " in run.out


def test_a_timing_that_fails_leaves_the_rest_of_the_report(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stops(*arguments: object, **options: object) -> None:
        raise UnverifiedError("the runtime stopped")

    monkeypatch.setattr("widthfold_onnx.evidence.pair.time_models", stops)
    options = VerifyOptions(provider=Provider.CPU, seeds=1)
    report = verification_of(*map(load, pair), options)
    assert report.verdict == "unverified"
    assert report.reasons == ["not timed: the runtime stopped"]
    assert all(row.passed for row in report.outputs)
    assert report.proof is not None
    assert report.proof.verdict == "equal"


def test_the_provider_is_named_where_the_original_does_not_run(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1, 4] x) => (float[1, 4] y) <int64[1] s = {7}> { y = Reshape (x, s) }"""
    path = tmp_path / "model.onnx"
    path.write_bytes(build(text).SerializeToString())
    report = verification_of(load(path), load(path), VerifyOptions(seeds=1))
    assert report.verdict == "unverified"
    assert report.environment.provider == resolved(VerifyOptions()).provider


def test_what_fails_is_said_before_what_limits(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parity = ModelParity(Findings(remarks=("left out seed 3: it stops",)), input_sets=1)
    monkeypatch.setattr("widthfold_onnx.evidence.pair.model_parity", lambda *a, **k: parity)
    monkeypatch.setattr("widthfold_onnx.evidence.pair.time_models", lambda *a, **k: timing())
    options = VerifyOptions(provider=Provider.CPU, seeds=1, fail_under=9.0)
    report = verification_of(*map(load, pair), options)
    assert [reason.split(":")[0] for reason in report.reasons] == [
        "slower than --fail-under 9 allows",
        "left out seed 3",
    ]


@pytest.mark.parametrize(
    "option",
    [
        ("--time-budget", "nan"),
        ("--truth-work", "nan"),
        ("--truth-work", "inf"),
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


def test_a_certificate_is_printed_on_request(pair: tuple[Path, Path], tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    quick = (*pair, "--seeds", 1, "--time-budget", 0.5)
    run = widthfold("verify", *quick, "--details", "--report", report)
    assert (run.code, run.err) == (0, "")
    document = verify_report(report)
    proof, lines = document["proof"], run.out.splitlines()
    assert proof["extents"] == [{"x": [1, 2, 8, 16]}]
    assert "extents: x [1, 2, 8, 16]" in lines
    for part in (f"below 2^-{proof['error_bits']})", ", ".join(map(str, proof["primes"]))):
        assert sum(part in line for line in lines) == 1
    assert proof["error_bits"] >= 50
    assert "1 new node exact on integers" in run.out
    plain = widthfold("verify", *quick)
    assert "extents: " not in plain.out


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


# ---------------------------------------------------------------- different models


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[1,1,1,1]> (x, w, b)", "[1,1,1,1]> (x, w)", "output y: max_rel"),
        ("Relu", "Tanh", "output y: max_rel"),
        ("Relu", "Sqrt", "output y: NaN or Inf at other places"),
        (
            "float[1,4,8,16] y",
            "float[n,4,8,16] y",
            "output y is declared float[n, 4, 8, 16] instead of float[1, 4, 8, 16]",
        ),
        (
            "float[1,2,8,16] x",
            "float[1,2,8,q] x",
            "input x is declared float[1, 2, 8, q] instead of float[1, 2, 8, 16]",
        ),
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
    assert verify_report(report)["verdict"] == "fail"


# ---------------------------------------------------------------- reports


WEAK = """<ir_version: 8, opset_import: ["" : 17]>
g (float[1, 2, 3, 16] x)
=> (float[1, 5, 3, 16] classes, float[1, 5, 3, 16] flat, float[1, 5, 3, 16] y)
<float[5, 2, 1, 3] w, float gain = {1e9}, float zero = {0}> {
  [conv] y = Conv <pads = [0, 1, 0, 1]> (x, w)
  sharp = Mul (y, gain)
  classes = Softmax <axis = 1> (sharp)
  flat = Mul (y, zero)
}"""


def test_outputs_that_show_little_are_named_on_the_screen(tmp_path: Path) -> None:
    path, out = save(build(WEAK), tmp_path / "in.onnx"), tmp_path / "out.onnx"
    lines = ("output classes: a weak check: every value is one of two",)
    lines += ("output flat: not a meaningful check: all values are equal",)
    for run in (
        widthfold("optimize", path, out, "--factor", 8),
        widthfold("verify", path, out, "--no-timing"),
    ):
        assert (run.code, run.err) == (0, "")
        assert {line for line in run.out.splitlines() if line.startswith("output ")} >= {*lines}
        assert "output y: " not in run.out


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
    assert texts[3].startswith("<!doctype html>")


def test_an_unknown_suffix_is_refused(pair: tuple[Path, Path], tmp_path: Path) -> None:
    path = tmp_path / "report.txt"
    for options in ((), ("--format", "junit")):
        run = widthfold("verify", *pair, *QUICK, "--report", path, *options)
        assert run.code == 2
        assert ".json, .xml, .md, .html" in run.line
    assert not path.exists()
