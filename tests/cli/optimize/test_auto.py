"""`--factor auto` as a user meets it, with stores that hold what would have been measured."""

from __future__ import annotations

import html
import json
import re
import shutil
import signal
import time
from pathlib import Path

import jsonschema
import numpy as np
import onnx
import pytest

from tests.cli.tool import OLD, names, on_terminal, schema_of, start_process, widthfold
from tests.folding import optimize
from tests.small_models import MODELS, build, save
from tests.tuning.world import World, doubled, enter, folded
from widthfold_onnx.options import AxisName, Effort, FoldOptions, Provider, SearchOptions
from widthfold_onnx.tuning.store import Store

MODEL = MODELS / "pitch_cnn.onnx"
GOOD = {"onset": 1.0, "context": 2.0, "head": -1.0, "bands": 0.5}
"""Seconds of ten that each layer saves in its place."""

PAYS = {"onset", "context", "bands"}

LAST = [8, 1, 3, 3]
"""Weight of a layer that does not come first."""

CPU = ("--provider", "cpu", "--seeds", "1", "--axis", "width")
"""Of the width alone, in which `doubled` gains, a layer has fewer forms to list."""

QUICK = ("--effort", "quick", "--time-budget", 2)

AUDIO = (1, 1, 16384)
AT_ONE_SIZE = (*CPU, "--input-shape", f"audio:{','.join(map(str, AUDIO))}")
"""Whether a second size is found depends on the seconds of a run, so on the load of the machine."""


def fill(path: Path, world: World) -> Path:
    """A store of all that a run in that world measures."""
    with pytest.MonkeyPatch.context() as patch:
        enter(patch, world)
        options = SearchOptions(provider=Provider.CPU, store=path, effort=Effort.THOROUGH)
        fold_options = FoldOptions(axis=AxisName.WIDTH, input_shapes={"audio": AUDIO})
        optimize(MODEL, None, fold_options, None, options)
    return path


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in which some layers pay."""
    return fill(tmp_path_factory.mktemp("tuned") / "store.sqlite", World(doubled, GOOD))


@pytest.fixture
def store(filled: Path, tmp_path: Path) -> Path:
    """A copy of that store."""
    return Path(shutil.copy(filled, tmp_path))


def test_a_copied_store_is_enough(store: Path, out: Path, tmp_path: Path) -> None:
    report, page = tmp_path / "report.json", tmp_path / "report.md"
    reports = ("--report", report, "--report", page)
    run = widthfold("optimize", MODEL, out, *AT_ONE_SIZE, "--store", store, *reports)
    assert (run.code, run.err) == (0, "")
    assert folded(out) == PAYS
    content = json.loads(report.read_text())
    jsonschema.validate(content, schema_of("optimize"))
    search = content["search"]
    assert (search["measured"], search["accepted"], search["threads"]) == (0, True, 1)
    assert search["whole"]["ratio"] == pytest.approx(10 / 6.5)
    assert search["sizes"][0]["shapes"] == {"audio": [1, 1, 16384]}
    assert content["verification"]["verdict"] == "pass"
    assert content["verification"]["proof"]["verdict"] == "equal"
    assert {fold["node"] for fold in content["verification"]["folds"]} == set(PAYS)
    codes = {site["node"]: (site["code"], site["gain"] is None) for site in content["sites"]}
    assert codes == {**dict.fromkeys(PAYS, ("folded", False)), "head": ("no-gain", False)}
    for text in (run.out, html.unescape(page.read_text())):
        assert "all measured before" in text
        assert "1.54x [1.53, 1.55]" in text
    assert "speed at audio 1x1x16384: 1.54x [1.53, 1.55], faster" in run.out
    assert "the whole model ran at 1.54x" in html.unescape(page.read_text())
    assert "but not in the whole model" in html.unescape(page.read_text())
    assert "| 2.00x [1.80, 2.20] |" in page.read_text()
    assert str(tmp_path) not in report.read_text()
    before = out.read_bytes()
    run = widthfold("optimize", MODEL, out, *AT_ONE_SIZE, "--store", store, "--no-verify")
    assert (run.code, out.read_bytes()) == (0, before)


def test_a_plan_writes_nothing(store: Path, out: Path) -> None:
    run = widthfold("optimize", MODEL, *AT_ONE_SIZE, "--store", store)
    assert (run.code, run.err) == (0, "")
    assert "3 of 4 Conv nodes would be folded, 1 kept; nothing written" in run.out
    run = widthfold(
        "optimize", MODEL, out, "--check", *AT_ONE_SIZE, "--store", store, "--format", "github"
    )
    assert (run.code, run.line) == (1, "widthfold: 3 nodes would be folded")
    assert run.out.count("::warning ") == 3
    assert run.out.count("alone it ran at 2.00x [1.80, 2.20]") == 3
    last = run.out.splitlines()[-1]
    assert last.startswith(
        "widthfold: 3 of 4 Conv nodes would be folded, 1 kept; nothing written; "
    )
    assert "; search on cpu: " in last
    assert names(out.parent) == []


def test_where_nothing_pays_the_output_is_the_input(out: Path, tmp_path: Path) -> None:
    store = fill(tmp_path / "poor.sqlite", World(doubled, dict.fromkeys(GOOD, -0.1)))
    run = widthfold("optimize", MODEL, out, *AT_ONE_SIZE, "--store", store)
    assert (run.code, run.err) == (0, "")
    assert out.read_bytes() == MODEL.read_bytes()
    assert "out.onnx is a copy of pitch_cnn.onnx" in run.out
    assert "is not above 1.020, the limit of noise" in run.out
    out.write_bytes(OLD)
    run = widthfold("optimize", MODEL, out, *AT_ONE_SIZE, "--store", store, "--require-fold")
    assert (run.code, out.read_bytes()) == (5, OLD)
    assert run.line == "widthfold: none of 4 Conv nodes was folded; nothing is written"
    assert widthfold("optimize", MODEL, "--check", *AT_ONE_SIZE, "--store", store).code == 0


def test_other_threads_are_not_known_and_a_budget_ends(store: Path, out: Path) -> None:
    """However small the budget is, the layer of the largest possible gain races."""
    run = widthfold(
        *("optimize", MODEL, out, *AT_ONE_SIZE, "--store", store),
        *("--threads", 2, "--time-budget", "1e-6", "--effort", "quick"),
    )
    assert (run.code, run.err) == (0, "")
    # By its time a layer may be too small to race; the layer that raced may have forms left.
    assert re.search(r" [234] layers left to measure", run.out)


@pytest.mark.parametrize("arguments", [("--threads", 0), ("--time-budget", 0)])
def test_senseless_numbers_are_refused(out: Path, arguments: tuple[object, ...]) -> None:
    run = widthfold("optimize", MODEL, out, *arguments)
    assert run.code == 2
    assert str(arguments[0]).strip("-") in run.line


@pytest.mark.parametrize("columns", [80, 120])
def test_a_terminal_gets_a_table_that_fits(store: Path, columns: int) -> None:
    run = on_terminal("optimize", MODEL, *AT_ONE_SIZE, "--store", store, columns=columns)
    assert run.code == 0
    shown = run.out.split("\x1b[?25h")[-1].splitlines()
    assert any("alone" in line for line in shown)
    assert sum("2.00x" in line for line in shown) >= 3
    assert any("search on cpu: " in line for line in shown)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_measuring_writes_the_best_that_is_known(
    number: int, tmp_path: Path, out: Path
) -> None:
    """That is tried once as a whole: no further trial looks for layers that do harm, as head."""

    def alone(layer, form):
        if layer["weight"] == LAST:
            raise KeyboardInterrupt
        return doubled(layer, form)

    store = fill(tmp_path / "store.sqlite", World(alone, GOOD))
    with Store(store) as opened:
        count = len(list(opened.items()))
    child = start_process("optimize", MODEL, out, *AT_ONE_SIZE, "--store", store)
    try:
        with Store(store) as opened:
            while len(list(opened.items())) == count and child.poll() is None:
                time.sleep(0.005)
        (worker,) = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
        child.send_signal(number)
        printed, error = child.communicate(timeout=60)
    finally:
        child.kill()
        child.communicate()
    message = b"widthfold: interrupted; decided with what had been measured\n"
    assert (child.returncode, error) == (130, message)
    assert b"ended early" in printed
    assert folded(out) - {"onset"} == {"context", "bands", "head"}  # a form of onset may have run
    assert not Path(f"/proc/{worker}").exists()


def test_of_a_model_whose_outputs_show_nothing_the_proof_decides(tmp_path: Path, out: Path) -> None:
    """A NaN in the weight of the last layer makes NaN of all that was folded before it."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1,1,64,256] x) => (float[1,1,64,256] y) <float[1,1,1,31] k, float[1,1,1,31] nan>
    { [good] a = Conv <pads = [0,15,0,15]> (x, k)
      [bad] y = Conv <pads = [0,15,0,15]> (a, nan) }"""
    model = build(text)
    weight = next(t for t in model.graph.initializer if t.name == "nan")
    numbers = onnx.numpy_helper.to_array(weight).copy()
    numbers[0, 0, 0, 7] = np.nan
    weight.CopyFrom(onnx.numpy_helper.from_array(numbers, "nan"))
    path, report = save(model, tmp_path / "model.onnx"), tmp_path / "report.json"
    words = (*CPU, *QUICK, "--store", tmp_path / "s.sqlite", "--report", report)
    run = widthfold("optimize", path, out, *words)
    assert (run.code, run.err) == (0, "")
    content = json.loads(report.read_text())
    jsonschema.validate(content, schema_of("optimize"))
    good, bad = content["sites"]
    assert good["status"] == "folded"
    assert (bad["status"], bad["code"]) == ("refused", "weight-not-finite")
    checks = content["verification"]
    assert (checks["verdict"], checks["proof"]["verdict"]) == ("pass", "equal")
    assert "no output shows anything" in "; ".join(checks["reasons"])
    assert widthfold("optimize", path, out, *CPU, "--factor", 8).code == 0


def test_stored_inputs_give_the_shapes_and_are_timed(tmp_path: Path) -> None:
    """Random inputs do not run: the index lies outside of a table of five rows."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[n,1,64,512] x, int64[1] row) => (float[n,1,64,512] y)
    <float[1,1,1,31] k, float[5,1,1] table>
    { a = Conv <pads = [0,15,0,15]> (x, k)
      b = Gather (table, row)
      y = Mul (a, b) }"""
    model, out, stored = (tmp_path / name for name in ("model.onnx", "out.onnx", "stored.npz"))
    save(build(text), model)
    x = np.random.default_rng(0).standard_normal((1, 1, 64, 512)).astype(np.float32)
    np.savez(stored, x=x, row=np.array([4], np.int64))
    words = (*CPU, *QUICK, "--seeds", 0, "--report", tmp_path / "report.json")
    run = widthfold("optimize", model, out, "--inputs", stored, *words)
    assert (run.code, run.err) == (0, "")
    search = json.loads((tmp_path / "report.json").read_text())["search"]
    assert [size["shapes"] for size in search["sizes"]] == [{"x": [1, 1, 64, 512], "row": [1]}]
    assert search["whole"]["pairs"] > 0


def test_what_cannot_be_judged_is_said_before_anything_is_measured(
    tmp_path: Path, out: Path
) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[1,2,8,16] x) => (float[1,4,8,16] y) <float[4,2,3,3] w> {
      c = Conv <pads = [1,1,1,1]> (x, w)
      r = RandomNormalLike (c)
      y = Add (c, r) }"""
    model, store = save(build(text), tmp_path / "model.onnx"), tmp_path / "store.sqlite"
    run = widthfold("optimize", model, out, *CPU, "--store", store)
    assert run.code == 4
    assert "output y cannot be judged" in run.line
    assert not out.exists()
    assert not store.exists()
