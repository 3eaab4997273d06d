"""The package works on a system without resource, fcntl, process groups, affinity and /proc."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.cli.tool import COMMAND
from tests.shared import ROOT
from tests.small_models import LAYER, MODELS, build, save

BARE = Path(__file__).parent / "path"

TAKEN = """
import os, pathlib, signal, sys
try:
    import resource
    sys.exit("resource")
except ImportError:
    pass
path = pathlib.Path(sys.argv[1])
with path.open("w") as file:
    try:
        path.replace(path.with_suffix(".new"))
        sys.exit("a file that is open was renamed")
    except PermissionError:
        pass
sys.exit(hasattr(os, "killpg") or hasattr(signal, "SIGHUP") or pathlib.Path("/proc/self").exists())
"""

IMPORTS = """
import importlib, pkgutil, widthfold_onnx
names = [m.name for m in pkgutil.walk_packages(widthfold_onnx.__path__, "widthfold_onnx.")]
for name in names:
    if name != "widthfold_onnx.olive":  # few have that library
        importlib.import_module(name)
print(len(names))
"""


def bare(*command: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command on such a system; it succeeds and says nothing on standard error."""
    path = os.pathsep.join([str(BARE), str(ROOT)])
    environment = os.environ | {"PYTHONPATH": path, "PYTHONUTF8": "0"} | variables
    run = subprocess.run(
        [str(word) for word in command],
        env=environment,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    return run


def test_it_is_such_a_system(tmp_path: Path) -> None:
    bare(sys.executable, "-c", TAKEN, tmp_path / "file")


def test_every_module_is_imported() -> None:
    assert int(bare(sys.executable, "-c", IMPORTS).stdout) > 180


def test_a_model_is_optimized_verified_and_measured(tmp_path: Path) -> None:
    model, folded, report = MODELS / "signal_1d.onnx", tmp_path / "out.onnx", tmp_path / "r.json"
    store = ("--store", tmp_path / "store.sqlite", "--effort", "quick", "--time-budget", 1)
    plan, applied = tmp_path / "plan.json", tmp_path / "applied.onnx"
    bare(*COMMAND, "optimize", model, folded, "--factor", 8, "--seeds", 1, "--save-plan", plan)
    bare(*COMMAND, "apply", model, plan, applied, "--seeds", 1)
    assert applied.read_bytes() == folded.read_bytes()
    bare(*COMMAND, "verify", model, folded, "--seeds", 1, "--time-budget", 1, "--report", report)
    facts = json.loads(report.read_bytes())
    assert facts["environment"]["cores"] >= 1
    measured = bare(*COMMAND, "tune", model, *store).stdout
    assert '"onnxruntime"' in measured  # the machine that it was measured on
    bare(*COMMAND, "optimize", model, folded, "--no-measure", *store[:2])


LIMITED = """
from tests.runtime.called import leave
from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.runtime.child import isolated
try:
    isolated(leave, memory=1 << 40)
except UnverifiedError as error:
    print(error)
"""


def test_a_limit_that_cannot_be_set_is_not_named() -> None:
    assert "limit" not in bare(sys.executable, "-c", LIMITED).stdout
    code = (
        "from tests.runtime.called import add; from widthfold_onnx.runtime.child import isolated\n"
        "print(isolated(add, 1, 2, memory=9))"
    )
    assert bare(sys.executable, "-c", code).stdout == "3\n"


def test_a_document_is_in_utf_8_whatever_the_encoding_of_the_pipe(tmp_path: Path) -> None:
    model = build(LAYER)
    model.graph.node[0].name = "łayer"
    path = save(model, tmp_path / "m.onnx")
    words = (*COMMAND, "optimize", path, "--factor", 2, "--format", "markdown")
    assert "łayer" in bare(*words, PYTHONIOENCODING="cp1252").stdout
