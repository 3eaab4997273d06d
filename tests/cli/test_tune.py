"""`widthfold tune`: the table and the JSON of the models, exit codes, interrupts."""

from __future__ import annotations

import json
import re
import signal
import time
from collections import Counter
from pathlib import Path

import jsonschema
import pytest

import widthfold_onnx
from tests.cli.tool import names, on_terminal, start_process, widthfold
from tests.small_models import MODELS
from tests.tuning.workers import falling, quick
from widthfold_onnx.tuning import bench as bench_module
from widthfold_onnx.tuning.store import Store

SCHEMA = json.loads((Path(widthfold_onnx.__file__).parent / "schemas" / "tune.json").read_text())
SIGNAL = MODELS / "signal_1d.onnx"
THREE = MODELS / "depthwise.onnx"


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own store, not there yet; no model runs while layers are measured."""
    path = tmp_path / "cache" / "own.sqlite"
    monkeypatch.setenv("WIDTHFOLD_STORE", str(path))
    monkeypatch.setattr(bench_module, "race", quick)
    return path


def rows(text: str) -> dict[str, list[str]]:
    """Cells by their first."""
    cells = [re.split(r"  +", line.strip()) for line in text.splitlines()]
    return {row[0]: row[1:] for row in cells}


def test_a_row_for_each_model(store: Path) -> None:
    first = widthfold("tune", SIGNAL, THREE, "--provider", "cpu")
    assert (first.code, first.err) == (0, "")
    table = rows(first.out)
    assert table["model"] == ["layers", "forms", "new", "known before", "skipped", "failed"]
    layers, forms, now, before, skipped, failed = map(int, table[SIGNAL.name])
    assert (layers, now, before, skipped, failed) == (1, forms + 1, 0, 0, 0)
    assert int(table[THREE.name][0]) == 3
    with Store(store) as opened:
        assert f"{len(list(opened.items()))} measurement(s) on cpu: {{" in first.out
    again = rows(widthfold("tune", SIGNAL, THREE, "--provider", "cpu").out)
    assert list(map(int, again[SIGNAL.name])) == [1, forms, 0, now, 0, 0]


def test_what_was_not_run_is_no_failure(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_module, "race", falling)
    run = widthfold("tune", SIGNAL, "--provider", "cpu")
    layers, forms, now, before, skipped, failed = map(int, rows(run.out)[SIGNAL.name])
    assert (layers, now, before) == (1, forms + 1, 0)
    assert (skipped, failed) == (2, forms - 2)
    printed = widthfold("tune", SIGNAL, "--format", "json")
    (model,) = json.loads(printed.out)["models"]
    assert (model["stored"], model["skipped"], model["failed"]) == (now, 2, forms - 2)
    with Store(store) as opened:
        measurements = [measurement for _, measurement in opened.items()]
    assert Counter(m.status for m in measurements) == {"ok": 1, "lost": forms}
    assert sum(m.skipped for m in measurements) == 2


def test_the_report_as_json(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    run = widthfold("tune", SIGNAL, "--report", path, "--store", tmp_path / "other")
    assert run.code == 0
    report = json.loads(path.read_text())
    jsonschema.validate(report, SCHEMA)
    assert report["schema"] == "widthfold.tune/4"
    assert report["models"][0]["model"] == SIGNAL.name
    assert str(tmp_path) not in path.read_text()
    assert "other" in names(tmp_path)
    printed = widthfold("tune", SIGNAL, "--format", "json", "--store", tmp_path / "other")
    assert json.loads(printed.out)["models"][0]["stored"] == report["models"][0]["measured"]


def test_a_model_that_contains_folds_is_not_tuned(tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    assert widthfold("optimize", SIGNAL, out, "--factor", 8, "--no-verify").code == 0
    run = widthfold("tune", out, SIGNAL, "--provider", "cpu", "--format", "json")
    assert run.code == 0
    first, second = json.loads(run.out)["models"]
    assert (first["layers"], first["measured"], first["code"]) == (0, 0, 0)
    assert first["reason"] == "the model carries folds of an earlier run; fold the original instead"
    assert second["layers"] == 1


def test_the_first_broken_model_decides_the_exit_code(tmp_path: Path) -> None:
    broken, gone = tmp_path / "broken\x1b[2J.onnx", tmp_path / "gone.onnx"
    broken.write_bytes(b"no model")
    for models, code in (((SIGNAL, broken, gone), 3), ((gone, broken, SIGNAL), 2)):
        run = widthfold("tune", *models)
        assert run.code == code
        assert "2 of 3 models could not be read; " in run.line
        assert "\x1b" not in run.out
        assert rows(run.out)[SIGNAL.name][0] == "1"
        assert "No such file" in rows(run.out)["gone.onnx"][-1]


def test_one_broken_model_is_refused_on_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.touch()
    run = widthfold("tune", broken)
    assert (run.code, run.out, run.line) == (3, "", "widthfold: broken.onnx: the file is empty")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "Missing argument 'MODELS...'"),
        ((SIGNAL, "--factor", 8), "No such option"),
        ((SIGNAL, "--jobs", 0), "--jobs"),
        ((SIGNAL, "--jobs", 4096), "4096 jobs of 1 thread(s)"),
        ((SIGNAL, "--threads", 1024, "--jobs", 2), "2 jobs of 1024 thread(s)"),
        ((SIGNAL, "--dask", "nothing://"), "no Dask scheduler answers at 'nothing://'"),
        ((SIGNAL, "--dask", "tcp://127.0.0.1:1", "--jobs", 2), "every worker measures"),
        ((SIGNAL, "--provider-option", "a"), "is not of the form NAME=VALUE"),
        (
            (SIGNAL, "--session-option", "a"),
            "'--session-option': 'a' is not of the form NAME=VALUE",
        ),
        ((SIGNAL, "--session-option", "session=1"), "session option 'session' is no name"),
        ((SIGNAL, "--time-budget", 0), "time-budget is 0"),
        ((SIGNAL, "--report", "x.xml"), "'x.xml' names no format of this command; it offers .json"),
    ],
)
def test_what_does_not_fit_is_said_on_one_line(words: tuple[object, ...], message: str) -> None:
    run = widthfold("tune", *words)
    assert run.code == 2
    assert message in run.line
    assert run.out == ""


def test_it_fits_a_terminal(tmp_path: Path) -> None:
    run = on_terminal("tune", SIGNAL, tmp_path / "gone.onnx", "--time-budget", 60, columns=80)
    assert run.code == 2
    bare = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", run.out)
    assert "signal_1d.onnx" in bare
    assert "No such file" in bare


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_keeps_what_was_measured(store: Path) -> None:
    child = start_process("tune", MODELS / "luma_sr.onnx", THREE)
    end = time.monotonic() + 60
    while child.poll() is None and time.monotonic() < end:
        time.sleep(0.1)
        if store.exists():
            with Store(store) as opened:
                if len(list(opened.items())):
                    child.send_signal(signal.SIGINT)
                    break
    out, err = child.communicate(timeout=60)
    assert (child.returncode, err.decode()) == (
        130,
        "widthfold: interrupted; the measurements are kept\n",
    )
    assert {"luma_sr.onnx", THREE.name} <= rows(out.decode()).keys()
    with Store(store) as opened:
        assert len(list(opened.items())) > 0
