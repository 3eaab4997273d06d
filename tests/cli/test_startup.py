"""Imports of a command before it answers: each takes time in every process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.small_models import MODELS, build, save

LIBRARIES = {
    *("jinja2", "junitparser", "matplotlib", "numpy", "onnx", "onnx_ir", "onnxruntime", "rich"),
    *("scipy", "sympy"),
}
COMMAND = "from widthfold_onnx.cli import main; main(prog_name='widthfold')"
TO_PARSE = {"numpy", "onnx"}
TO_FOLD = {*TO_PARSE, "onnx_ir"}

NO_MODELS = {
    "empty": b"",
    "text": b"hello, I am no model\n",
    "pointer": b"version https://git-lfs.github.com/spec/v1\n",
    "cut": (MODELS / "pitch_cnn.onnx").read_bytes()[:500],
}


def imported(code: str, report: Path, *args: object) -> tuple[set[str], int]:
    """Run in an interpreter of its own; return which of `LIBRARIES` it imported, and its code."""
    wrapped = (
        "import atexit, json, sys\n"
        "report = sys.argv.pop(1)\n"
        "atexit.register(lambda: json.dump(sorted(sys.modules), open(report, 'w')))\n" + code
    )
    command = [sys.executable, "-c", wrapped, str(report), *map(str, args)]
    run = subprocess.run(command, capture_output=True, timeout=100, check=False)
    return LIBRARIES & set(json.loads(report.read_text())), run.returncode


@pytest.fixture
def report(tmp_path: Path) -> Path:
    return tmp_path / "imported.json"


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_help_needs_no_library(word: str, report: Path) -> None:
    assert imported(COMMAND, report, word) == (set(), 0)


@pytest.mark.parametrize("verb", ["optimize", "verify", "inspect", "tune"])
@pytest.mark.parametrize("name", NO_MODELS)
def test_a_file_that_is_no_model_is_refused_before_a_library_is_imported(
    verb: str, name: str, report: Path, tmp_path: Path
) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(NO_MODELS[name])
    second = {"optimize": [tmp_path / "out.onnx"], "verify": [path]}.get(verb, [])
    # Only the definition of its messages tells that a model is cut off.
    libraries = TO_PARSE if name == "cut" else set()
    assert imported(COMMAND, report, verb, path, *second) == (libraries, 3)


PRECOMMIT = (
    "import sys; from widthfold_onnx.cli.precommit import precommit_command; "
    "precommit_command(sys.argv[1:])"
)


@pytest.mark.parametrize("name", NO_MODELS)
def test_so_are_a_second_file_and_a_file_of_pre_commit(
    name: str, report: Path, tmp_path: Path
) -> None:
    good, bad = save(build(), tmp_path / "good.onnx"), tmp_path / "bad.onnx"
    bad.write_bytes(NO_MODELS[name])
    assert imported(COMMAND, report, "verify", good, bad) == (TO_PARSE, 3)
    libraries = TO_PARSE if name == "cut" else set()
    assert imported(PRECOMMIT, report, bad) == (libraries, 3)


@pytest.mark.parametrize("verb", ["optimize", "verify", "inspect"])
def test_a_broken_model_is_refused_by_what_parses_it(
    verb: str, report: Path, tmp_path: Path
) -> None:
    model = build()
    model.graph.node[1].input[0] = "nowhere"
    path = save(model, tmp_path / "m.onnx")
    second = {"optimize": [tmp_path / "out.onnx"], "verify": [path], "inspect": []}[verb]
    assert imported(COMMAND, report, verb, path, *second) == (TO_PARSE, 3)


def test_a_fold_needs_neither_the_runtime_nor_what_renders_other_reports(
    report: Path, tmp_path: Path
) -> None:
    path = save(build(), tmp_path / "m.onnx")
    options = ("--factor", 2, "--format", "json")
    assert imported(COMMAND, report, "optimize", path, *options) == ({*TO_FOLD, "rich"}, 0)


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("import widthfold_onnx as wf; dir(wf), wf.UsageError", set()),
        ("import widthfold_onnx as wf; wf.optimize, wf.verify, wf.inspect", TO_FOLD),
        (
            "import widthfold_onnx.evidence.checks, widthfold_onnx.tuning.successive_halving",
            TO_FOLD,
        ),
        (
            "import widthfold_onnx.runtime.inputs.sizes, widthfold_onnx.tuning.identity",
            TO_PARSE,
        ),
        ("import widthfold_onnx.evidence.parity.truth", TO_PARSE),
        ("import widthfold_onnx.runtime.child", set()),
    ],
)
def test_a_module_imports_no_library_that_it_does_not_use(
    statement: str, expected: set[str], report: Path
) -> None:
    assert imported(statement, report) == (expected, 0)
