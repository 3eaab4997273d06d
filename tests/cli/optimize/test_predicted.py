"""optimize --no-measure: by the store, else by prediction, which always says that it is one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import onnx
import pytest

from tests.cli.tool import process, widthfold
from tests.small_models import MODELS, STRIDED, build, same, save
from tests.tuning.world import WHOLE, World, doubled, enter
from widthfold_onnx.model.document import Document
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.options import FoldOptions, Provider, RuntimeOptions
from widthfold_onnx.rewrite.reading import Reading
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.tuning.identity import machine_identity, setting_identity
from widthfold_onnx.tuning.layers import Layers
from widthfold_onnx.tuning.measurement import AS_IS, Measurement, now
from widthfold_onnx.tuning.store import Key, Store
from widthfold_onnx.tuning.targets import default_target, load_target
from widthfold_onnx.tuning.workloads import Workload

CPU = ("--no-measure", "--target", "cpu-avx512")
WIDE = MODELS / "wide_signal.onnx"
SETTING = setting_identity(RuntimeOptions(provider=Provider.CPU), Level.ALL)

WINS = {
    "8 -> 8, 3x39": ([1, 8, 172, 264], [8, 8, 3, 39], same(3, 39)),
    "32 -> 1, 7x3": ([1, 32, 172, 88], [1, 32, 7, 3], same(7, 3)),
    "1 -> 1, 1x31": ([1, 1, 512, 512], [1, 1, 1, 31], same(1, 31)),
    "1 -> 4, 3x3": ([1, 1, 640, 640], [4, 1, 3, 3], same(3, 3)),
    "1 -> 1, 3x3, batch 16": ([16, 1, 64, 64], [1, 1, 3, 3], same(3, 3)),
}
TRAPS = {
    "3 -> 64, 7x7 at stride 2": ([1, 3, 224, 224], [64, 3, 7, 7], STRIDED.format(3)),
    "4 -> 8, 3x3 at stride 2": ([1, 4, 640, 640], [8, 4, 3, 3], STRIDED.format(1)),
    "1-D, 5 taps": ([1, 1, 480000], [1, 1, 5], same(5)),
    "64 -> 64, 3x3": ([1, 64, 56, 56], [64, 64, 3, 3], same(3, 3)),
}


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "store.sqlite"
    monkeypatch.setenv("WIDTHFOLD_STORE", str(path))
    return path


def layer(folder: Path, shape: list[object], weight: list[int], attributes: str) -> Path:
    dims = ", ".join(map(str, shape))
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[{dims}] x) => (float[{", ".join("abcde"[: len(shape)])}] y) <float{weight} w>
    {{
        [conv] c = Conv <{attributes}> (x, w)
        y = Relu (c)
    }}"""
    return save(build(text), folder / "layer.onnx")


def planned(model: Path, *options: object) -> dict:
    run = widthfold("optimize", model, "--format", "json", *options)
    assert (run.code, run.err) == (0, ""), run
    return json.loads(run.out)


@pytest.mark.parametrize("case", WINS)
def test_known_wins_are_folded_unmeasured(case: str, tmp_path: Path) -> None:
    report = planned(layer(tmp_path, *WINS[case]), *CPU)
    (site,) = report["sites"]
    assert site["status"] == "folded"
    assert site["gain"]["predicted"]
    assert site["gain"]["pairs"] == 0
    assert site["gain"]["ratio"] > 1.25
    search = report["search"]
    assert (search["target"], search["predicted"], search["measured"]) == ("cpu-avx512", 1, 0)
    assert search["whole"] is None


@pytest.mark.parametrize("case", TRAPS)
def test_known_traps_are_left_alone(case: str, tmp_path: Path) -> None:
    model, out = layer(tmp_path, *TRAPS[case]), tmp_path / "out.onnx"
    run = widthfold("optimize", model, out, *CPU)
    assert (run.code, run.err) == (0, ""), run
    assert out.read_bytes() == model.read_bytes()
    assert "0 of 1 Conv nodes folded" in run.out


def test_every_form_of_the_report_says_that_it_predicts(tmp_path: Path) -> None:
    run = widthfold("optimize", WIDE, tmp_path / "out.onnx", *CPU)
    assert run.code == 0, run
    assert "x predicted" in run.out
    assert "1 layer predicted for cpu-avx512, not measured\n" in run.out
    assert "speed: the whole model was not timed\n" in run.out
    assert "verdict: pass" in run.out
    assert "not timed; to see if it pays: widthfold verify" in run.out
    only = ("--nodes", "extract")
    copy = widthfold("optimize", MODELS / "luma_sr.onnx", *only, *CPU)
    assert "x; 1.25x would be folded unmeasured" in copy.out
    assert "no choice of forms is sure to gain" in copy.out


def test_planning_needs_no_runtime(tmp_path: Path) -> None:
    blocked = tmp_path / "blocked" / "onnxruntime"
    blocked.mkdir(parents=True)
    (blocked / "__init__.py").write_text("raise ModuleNotFoundError('No module onnxruntime')\n")
    env, out = {"PYTHONPATH": str(blocked.parent)}, tmp_path / "out.onnx"
    run = process("optimize", WIDE, out, *CPU, "--no-verify", env=env)
    assert (run.code, run.err) == (0, ""), run
    assert len(onnx.load(out).graph.node) > 2
    out.unlink()
    run = process("optimize", WIDE, out, *CPU, env=env)
    assert run.code == 4, run
    assert not out.exists()


def test_gpus_are_targets_as_well(tmp_path: Path) -> None:
    for name in ("a100", "h100", "h200"):
        report = planned(WIDE, "--no-measure", "--target", name)
        assert (report["search"]["target"], report["search"]["provider"]) == (name, "cuda")
        assert report["sites"][0]["gain"]["predicted"]


def test_the_processor_is_the_target_by_default() -> None:
    assert planned(WIDE, "--no-measure")["search"]["target"] == default_target(Provider.CPU)


@pytest.mark.parametrize("factor", [(), ("--factor", 8)])
def test_an_unknown_target_is_one_line_with_all_of_them(factor: tuple[object, ...]) -> None:
    run = widthfold("optimize", WIDE, "--no-measure", "--target", "v100", *factor)
    assert run.code == 2
    assert "no target is called 'v100'; there are a100, cpu-avx2, cpu-avx512, h100" in run.line


@pytest.mark.parametrize("measure", [(), ("--no-measure",)])
def test_a_target_of_another_provider_is_refused(measure: tuple[str, ...]) -> None:
    options = ("--target", "h100", "--provider", "cpu", *measure)
    run = widthfold("optimize", WIDE, *options)
    assert run.code == 2
    assert "target h100 is of provider cuda, not cpu" in run.line


def test_open_sizes_must_be_given_as_nothing_is_run(tmp_path: Path) -> None:
    model = layer(tmp_path, ["batch", 1, "h", 512], [1, 1, 1, 31], same(1, 31))
    run = widthfold("optimize", model, *CPU)
    assert run.code == 2
    assert "nothing is run to find them out; pass --input-shape x:SIZE" in run.line
    report = planned(model, *CPU, "--input-shape", "x:1,1,512,512")
    assert report["sites"][0]["status"] == "folded"
    batch = layer(tmp_path, ["batch", 1, 512, 512], [1, 1, 1, 31], same(1, 31))
    assert planned(batch, *CPU)["search"]["sizes"][0]["shapes"] == {"x": [1, 1, 512, 512]}


# ---------------------------------------------------------------- what the store holds


def the_layer() -> Workload:
    reading = Reading(Document(onnx.load(WIDE), None, OPERATORS))
    layers = Layers.of(reading, FoldOptions(), {"x": (1, 1, 512, 512)}, load_target("cpu-avx512"))
    (workload,) = layers.workloads.values()
    return workload


def put(store: Path, machine: str, ratio: float) -> None:
    """Measurements of the layer as it is and in its last form, which none would predict."""
    workload = the_layer()
    with Store(store) as opened:
        for candidate, value in ((AS_IS, 1.0), (workload.forms[-1].spec.text, ratio)):
            measured = Measurement("ok", value, value, value, 1e-3, 10, "", now())
            opened.put(Key(workload.subject, candidate, SETTING, machine), measured)


def test_a_batch_of_no_samples_is_not_open(tmp_path: Path) -> None:
    path = layer(tmp_path, [0, 1, 8, 8], [8, 1, 1, 1], "group = 1")
    (site,) = planned(path, *CPU)["sites"]
    assert site["code"] == "empty-tensor"


def test_what_another_machine_measured_decides(store: Path) -> None:
    put(store, "elsewhere", 1.1)
    report = planned(WIDE, *CPU)
    (site,) = report["sites"]
    gain = {"ratio": 1.1, "low": 1.1, "high": 1.1, "pairs": 10, "predicted": False}
    assert (site["status"], site["gain"]) == ("folded", gain)
    assert report["search"]["predicted"] == 0
    put(store, "elsewhere", 1.01)
    (site,) = planned(WIDE, *CPU)["sites"]
    assert (site["status"], site["code"]) == ("kept", "no-gain")


def test_of_several_machines_only_this_one_decides(store: Path) -> None:
    put(store, "elsewhere", 1.1)
    put(store, "yonder", 1.1)
    assert planned(WIDE, *CPU)["sites"][0]["gain"]["predicted"]
    put(store, machine_identity(Provider.CPU), 1.2)
    own, other = sorted(("cpu-avx512", "cpu-avx2"), key=lambda n: n != default_target(Provider.CPU))
    assert planned(WIDE, "--no-measure", "--target", own)["sites"][0]["gain"]["ratio"] == 1.2
    assert planned(WIDE, "--no-measure", "--target", other)["sites"][0]["gain"]["predicted"]


def test_measurements_of_another_device_or_setting_do_not_count(store: Path) -> None:
    put(store, "elsewhere", 1.1)
    assert planned(WIDE, "--no-measure", "--target", "h100")["sites"][0]["gain"]["predicted"]
    assert planned(WIDE, *CPU, "--threads", 2)["sites"][0]["gain"]["predicted"]


def test_a_layer_that_did_not_run_is_not_predicted(store: Path) -> None:
    workload = the_layer()
    with Store(store) as opened:
        opened.put(Key(workload.subject, AS_IS, SETTING, "elsewhere"), Measurement.lost("it hung"))
    (site,) = planned(WIDE, *CPU)["sites"]
    assert (site["status"], site["gain"]) == ("kept", None)


@pytest.mark.parametrize(("saved", "status"), [(4.0, "folded"), (-4.0, "kept")])
def test_the_whole_model_as_it_was_timed_has_the_last_word(
    saved: float, status: str, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of a machine's store gives its decision again, without a runtime."""
    world = enter(monkeypatch, World(doubled, {"conv": saved}))
    tuned = planned(WIDE, "--effort", "thorough")
    (site,) = tuned["sites"]
    assert (site["status"], site["gain"]["ratio"], site["gain"]["predicted"]) == (status, 2, False)
    assert tuned["search"]["whole"]["ratio"] == WHOLE / (WHOLE - saved)
    assert (len(world.raced), len(world.compared)) == (1, 1)
    there = Path(shutil.copy(store, tmp_path / "other.sqlite"))
    again = planned(
        WIDE, "--no-measure", "--target", default_target(Provider.CPU), "--store", there
    )
    assert again["sites"] == tuned["sites"]
    assert again["search"]["whole"] == tuned["search"]["whole"]
    assert (again["search"]["measured"], again["search"]["predicted"]) == (0, 0)
    assert (len(world.raced), len(world.compared)) == (1, 1)
