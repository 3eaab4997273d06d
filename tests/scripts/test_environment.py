"""The functions that the scripts share: environments, runtimes, emulators."""

import os
import re
import shutil
import signal
import subprocess
import tomllib
import venv
from functools import partial
from pathlib import Path

import pytest

from tests.shared import ROOT

COMMANDS = ["scripts/demo", "scripts/docs", "scripts/test", "scripts/nightly", ".ci/run"]
BASH = shutil.which("bash") or "bash"

WITH_GPU = "echo 'GPU 0: Some Device (UUID: GPU-0)'"
WITHOUT_DRIVER = "echo 'NVIDIA-SMI has failed because it could not talk to the driver'; exit 9"
WITHOUT_DEVICE = "echo 'No devices found.'"

# Plays the Python of an environment: is new enough, has pip, holds no runtime, logs its installs.
PYTHON = """case "$*" in *'pip install'*) echo "${@: -1}" >>"$VIRTUAL_ENV/log" ;; esac"""


def command(path: Path, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{BASH}\n{body}\n")
    path.chmod(0o755)


def call(function: str, *, cwd=ROOT, environment=None, path=None):
    """Calls a function of scripts/environment as the scripts do; returns the finished process."""
    variables = {key: value for key, value in os.environ.items() if key != "VIRTUAL_ENV"}
    if environment:
        variables["VIRTUAL_ENV"] = str(environment)
    if path:
        variables["PATH"] = f"{path}{os.pathsep}{variables['PATH']}"
    script = f'set -euo pipefail; source "$0"; {function}'
    # Tests that were started in the background ignore SIGINT, and bash cannot trap it then.
    return subprocess.run(
        [BASH, "-c", script, ROOT / "scripts/environment"],
        cwd=cwd,
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


def environment_with(root: Path, *wheels: str) -> Path:
    venv.create(root, with_pip=False)
    (packages,) = root.glob("lib/python*/site-packages")
    for wheel in wheels:
        info = packages / f"{wheel.replace('-', '_')}-1.31.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {wheel}\nVersion: 1.31.0\n")
    return root


@pytest.mark.parametrize("script", [*COMMANDS, "scripts/environment"])
def test_scripts_parse_and_only_commands_are_executable(script):
    subprocess.run([BASH, "-n", ROOT / script], check=True)
    assert os.access(ROOT / script, os.X_OK) == (script in COMMANDS)


def test_sourcing_only_defines(tmp_path):
    process = call("true", cwd=tmp_path)
    assert (process.returncode, process.stdout, process.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("driver", "extra"), [(WITH_GPU, "gpu"), (WITHOUT_DRIVER, "cpu"), (WITHOUT_DEVICE, "cpu")]
)
def test_the_driver_chooses_the_runtime(tmp_path, driver, extra):
    command(tmp_path / "nvidia-smi", driver)
    process = call("choose_extra", path=tmp_path)
    assert (process.stdout, process.stderr) == (f"{extra}\n", "")


def test_no_driver_means_cpu(tmp_path):
    process = call(f"PATH={tmp_path}; choose_extra")
    assert (process.stdout, process.stderr) == ("cpu\n", "")


@pytest.mark.parametrize(
    ("driver", "wheel", "extra"),
    [
        (WITH_GPU, "onnxruntime", "cpu"),
        (WITHOUT_DEVICE, "onnxruntime-gpu", "gpu"),
        (WITHOUT_DEVICE, "onnxruntime-openvino", "openvino"),
    ],
)
def test_an_installed_runtime_is_kept(tmp_path, driver, wheel, extra):
    command(tmp_path / "bin/nvidia-smi", driver)
    environment = environment_with(tmp_path / "venv", wheel)
    process = call("choose_extra", environment=environment, path=tmp_path / "bin")
    assert process.stdout == f"{extra}\n"
    assert f"kept {extra}" in process.stderr
    assert process.stderr.count("\n") == 1


def test_the_suitable_runtime_needs_no_words(tmp_path):
    command(tmp_path / "bin/nvidia-smi", WITH_GPU)
    environment = environment_with(tmp_path / "venv", "onnxruntime-gpu")
    process = call("choose_extra", environment=environment, path=tmp_path / "bin")
    assert (process.stdout, process.stderr) == ("gpu\n", "")


def test_both_runtimes_at_once_are_an_error(tmp_path):
    environment = environment_with(tmp_path / "venv", "onnxruntime", "onnxruntime-gpu")
    process = call("choose_extra", environment=environment)
    assert process.returncode == 1
    assert "the runtimes of cpu, gpu are in" in process.stderr


def test_installs_only_what_changed(tmp_path):
    environment, project = tmp_path / "venv", tmp_path / "a project"
    command(environment / "bin/python", PYTHON)
    command(tmp_path / "bin/nvidia-smi", WITHOUT_DEVICE)
    project.mkdir()

    def installed_by(function):
        log = environment / "log"
        log.unlink(missing_ok=True)
        process = call(function, cwd=project, environment=environment, path=tmp_path / "bin")
        assert process.returncode == 0, process.stderr
        assert process.stderr.count("\n") == 1
        return log.read_text().split() if log.exists() else []

    requirements = project / "pyproject.toml"
    requirements.write_text("one")
    assert installed_by("prepare") == [".[cpu]"]
    assert installed_by("prepare") == []
    assert installed_by("prepare dev") == [".[cpu,dev]"]
    assert installed_by("prepare dev") == []
    assert installed_by("prepare") == []
    requirements.write_text("two")
    assert installed_by("prepare dev") == [".[cpu,dev]"]


def test_a_failed_install_is_tried_again(tmp_path):
    command(tmp_path / "venv/bin/python", PYTHON + "; [[ $* != *'pip install'* ]]")
    command(tmp_path / "bin/nvidia-smi", WITHOUT_DEVICE)
    (tmp_path / "pyproject.toml").touch()
    for _ in range(2):
        process = call(
            "prepare", cwd=tmp_path, environment=tmp_path / "venv", path=tmp_path / "bin"
        )
        assert process.returncode != 0
        assert "installing" in process.stderr


def test_an_old_python_is_refused_with_a_reason(tmp_path):
    command(tmp_path / "venv/bin/python", "exit 1")
    process = call("prepare", environment=tmp_path / "venv")
    assert process.returncode == 1
    assert "has no Python 3.11 or newer" in process.stderr


@pytest.mark.parametrize("works", [True, False])
def test_a_browser_is_installed_where_that_is_allowed(tmp_path, works):
    command(tmp_path / "apt-get", f'echo "$*" >>{tmp_path}/log; {"true" if works else "exit 1"}')
    (tmp_path / "timeout").symlink_to(shutil.which("timeout"))
    process = call(f"PATH={tmp_path}; provide_browser")
    assert (process.returncode, process.stdout) == (0, "")
    skipped = "no browser" in process.stderr
    if os.geteuid():
        assert skipped
        return
    steps = (tmp_path / "log").read_text().splitlines()
    assert steps[0] == "-qq update"
    assert skipped == (not works)
    assert len(steps) == (2 if works else 1)


def test_an_installed_browser_is_taken(tmp_path):
    command(tmp_path / "chromium", "exit 1")
    process = call(f"PATH={tmp_path}; provide_browser")
    assert (process.returncode, process.stdout, process.stderr) == (0, "", "")


def test_the_tests_that_the_nightly_run_names_are_there() -> None:
    named = re.findall(r"tests/[\w/*.]+", (ROOT / "scripts/nightly").read_text())
    assert [name for name in named if not list(ROOT.glob(name))] == []
    assert named


def test_the_oldest_releases_are_those_that_the_project_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needs = [*project["dependencies"], *project["optional-dependencies"]["cpu"]]
    least = dict(re.findall(r"^([\w-]+)>=([\d.]+)", "\n".join(needs), re.MULTILINE))
    text = (ROOT / "scripts/oldest.txt").read_text(encoding="utf-8")
    oldest = dict(re.findall(r"^([\w-]+)==([\d.]+)$", text, re.MULTILINE))
    assert oldest.keys() == least.keys()
    assert {n: v for n, v in oldest.items() if not f"{v}.".startswith(f"{least[n]}.")} == {}


STAGES = """
good_one() { echo "good $*"; }
broken_one() { false; echo "went on"; }
interrupted_one() { kill -INT $$; }
"""


def test_a_stage_that_fails_ends_there_and_the_next_one_runs():
    process = call(f"{STAGES} run_stages 'broken_one good_one' -k 'a b'; echo unreached")
    assert (process.returncode, process.stdout) == (1, "good -k a b\n")
    names = ["widthfold: broken one", "widthfold: good one", "FAILED: broken one"]
    assert process.stderr.splitlines() == names


def test_stages_that_all_pass_let_the_script_go_on():
    process = call(f"{STAGES} run_stages 'good_one good_one' x; echo reached")
    assert (process.returncode, process.stdout) == (0, "good x\ngood x\nreached\n")


def test_an_interrupt_ends_all_stages():
    process = call(f"{STAGES} run_stages 'interrupted_one good_one'")
    assert (process.returncode, process.stdout) == (130, "")
    assert process.stderr.splitlines()[-1] == "widthfold: interrupted"
