"""The GitHub Action, as far as it runs without its service."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.shared import ROOT

ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
BASH = shutil.which("bash") or "bash"

# Plays widthfold: logs its arguments, and writes the file of `--report`.
PLAYED = """printf '<%s>' "$@" >>"$LOG"
while [[ $1 != --report ]]; do shift; done
[[ -z ${SILENT:-} ]] && echo 'the summary' >"$2"
exit "${CODE:-0}" """


def run_step(name: str, folder: Path, **variables: str) -> tuple[int, str, str]:
    """Run a step as the runner does; return its code, the logged calls, and the summary."""
    (step,) = [step for step in ACTION["runs"]["steps"] if step.get("name") == name]
    tools = folder / "bin"
    tools.mkdir(exist_ok=True)
    for tool, body in (("widthfold", PLAYED), ("python", """printf '<%s>' "$@" >>"$LOG" """)):
        (tools / tool).write_text(f"#!{BASH}\n{body}\n")
        (tools / tool).chmod(0o755)
    log, summary = folder / "log", folder / "summary"
    summary.write_text("before\n")
    unset = {key: "" for key in step["env"] if key not in variables}
    done = subprocess.run(
        [BASH, "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        env={
            **os.environ,
            **unset,
            **variables,
            "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
            "LOG": str(log),
            "GITHUB_STEP_SUMMARY": str(summary),
            "GITHUB_ACTION_PATH": str(ROOT),
        },
        cwd=folder,
        check=False,
    )
    calls = log.read_text().replace(str(ROOT), "ROOT")
    return done.returncode, calls, summary.read_text()


def test_the_action_is_composite_and_hands_inputs_over_as_variables() -> None:
    assert ACTION["runs"]["using"] == "composite"
    assert {name for name, entry in ACTION["inputs"].items() if entry.get("required")} == {"model"}
    used = set()
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step.get("run", "")
        assert ("run" in step) == ("shell" in step)
        for value in (step.get("env") or step["with"]).values():
            used.add(value.removeprefix("${{ inputs.").removesuffix(" }}"))
    assert used == ACTION["inputs"].keys()


def test_it_installs_itself_with_a_runtime(tmp_path: Path) -> None:
    code, called, _ = run_step("Install widthfold", tmp_path, RUNTIME="gpu")
    assert (code, called) == (0, "<-m><pip><install><--quiet><ROOT[gpu]>")


def test_it_verifies_a_pair(tmp_path: Path) -> None:
    arguments = {"MODEL": "a b.onnx", "REWRITTEN": "-c.onnx", "ARGUMENTS": "--seeds 1\n--rtol '*'"}
    code, called, summary = run_step("Run widthfold", tmp_path, **arguments)
    assert called.startswith("<verify><--seeds><1><--rtol><'*'><--format><github><--report>")
    assert called.endswith("<--><a b.onnx><-c.onnx>")
    assert (code, summary) == (0, "before\nthe summary\n")


@pytest.mark.parametrize("code", ["1", "3"])
def test_it_checks_a_model_and_keeps_the_code(code: str, tmp_path: Path) -> None:
    variables = {"MODEL": "$(touch hacked)", "ARGUMENTS": "--factor 8", "CODE": code}
    if code == "3":
        variables["SILENT"] = "yes"
    got, called, summary = run_step("Run widthfold", tmp_path, **variables)
    assert called.startswith("<optimize><--check><--factor><8><--format><github>")
    assert called.endswith("<--><$(touch hacked)>")
    assert got == int(code)
    assert summary == ("before\n" if code == "3" else "before\nthe summary\n")
    assert not (tmp_path / "hacked").exists()


def test_the_real_command_understands_what_the_action_says(tmp_path: Path) -> None:
    model, summary = ROOT / "models" / "pitch_cnn.onnx", tmp_path / "summary.md"
    options = ["--factor", "8", "--format", "github", "--report", summary]
    done = subprocess.run(
        [sys.executable, "-c", "from widthfold_onnx.cli import main; main()"]
        + [str(part) for part in ("optimize", "--check", *options, "--", model)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout.count("::warning file=") == 4
    message = "<code>4 of 4 Conv nodes would be folded&#59; nothing written</code>"
    assert f"**pitch&#95;cnn&#46;onnx:** {message}\n" in summary.read_text()
