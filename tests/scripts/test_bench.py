"""The benchmark's table and picture; the runs themselves are the bench."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import msgspec
import onnx
import pytest

from tests.lacking import needs_prelu
from tests.runtime.fake_nvml import FakeNvml
from tests.shared import ROOT
from tests.small_models import build, save
from tests.tuning.search import nets
from widthfold_onnx.errors import UnverifiedError, UsageError
from widthfold_onnx.options import Effort, Provider, RuntimeOptions, SearchOptions
from widthfold_onnx.pipeline import Result
from widthfold_onnx.results import Gpu, GpuState, NodeTime
from widthfold_onnx.rewrite.plan import Plan
from widthfold_onnx.runtime import session
from widthfold_onnx.tuning import successive_halving


@pytest.fixture
def report(scripts: Path) -> ModuleType:
    return importlib.import_module("benchmark.report")


@pytest.fixture
def measuring(scripts: Path) -> ModuleType:
    return importlib.import_module("benchmark.measuring")


@pytest.fixture
def bench(scripts: Path) -> ModuleType:
    return importlib.import_module("bench")


def suite(report: ModuleType):
    timed = {"original_ms": 2.0, "ms": 1.0, "low": 1.9, "high": 2.1, "control": 0.01}
    cells = {
        "factor 8": report.Cell(note="as it is"),
        "auto": report.Cell(note="faster", ratio=2.0, folded=1, **timed),
        "channel pad": report.Cell(note="slower", ratio=0.5, folded=3, **timed | {"low": 0.4}),
        "OpenVINO": report.Cell(note="does not run: a | b"),
    }
    ranks = report.Ranks(forms=9, overall=0.8, layers={"a": 0.9, "b": 0.5, "c": None}, scale=1.2)
    rows = [report.Row(model="chain", layers=4, cells=cells)]
    return report.Suite(rows=rows, ranks=ranks, environment=None)


def test_a_line_per_model_with_intervals_or_the_reason(report: ModuleType) -> None:
    text = suite(report).markdown()
    row = (
        "| chain | 4 | 2.000 | as it is | 2.00x [1.90, 2.10] | 0.50x [0.40, 2.10] "
        "| does not run | 1.01 |"
    )
    assert row in text.splitlines()
    assert "rank correlation 0.80, within 2 layers 0.70 in the mean" in text


def test_the_picture_and_the_numbers_are_the_same_every_time(
    report: ModuleType, tmp_path: Path
) -> None:
    rows = suite(report)
    for name in ("one", "two"):
        report.draw(rows, tmp_path / f"{name}.svg")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    again = msgspec.json.decode(msgspec.json.encode(rows), type=report.Suite)
    assert again == rows


def test_without_openvino_the_column_says_so(
    report: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rival = importlib.import_module("benchmark.openvino")
    monkeypatch.setitem(sys.modules, "openvino", None)
    monkeypatch.setattr(rival, "find_spec", lambda name: None)
    rival.installed.cache_clear()
    assert rival.against_openvino(Path("no.onnx"), {}, 1.0).note == "not installed"
    assert "OpenVINO is NOT compared" in capsys.readouterr().err
    rival.installed.cache_clear()


def test_openvino_runs_at_as_many_threads_as_the_runtime(
    scripts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rival, settings, threads = importlib.import_module("benchmark.openvino"), {}, []
    request = SimpleNamespace(set_tensor=lambda *_: None, infer=lambda: None)

    def compile_model(graph: object, device: str, options: dict[str, object]) -> SimpleNamespace:
        settings.update(options)
        return SimpleNamespace(create_infer_request=lambda: request)

    def open_session(model: Path, options: RuntimeOptions, level: object):
        threads.append(options.threads)
        return opened(model, options, level)

    opened = rival.open_session
    graph = SimpleNamespace(reshape=lambda shapes: None)
    core = SimpleNamespace(read_model=lambda path: graph, compile_model=compile_model)
    fake = SimpleNamespace(Core=lambda: core, Tensor=lambda array: array)
    monkeypatch.setitem(sys.modules, "openvino", fake)
    monkeypatch.setattr(rival, "installed", lambda: True)
    monkeypatch.setattr(rival, "open_session", open_session)
    cell = rival.against_openvino(ROOT / "models/ragged.onnx", {}, 0.05, 2)
    assert cell.ratio is not None
    assert settings["INFERENCE_NUM_THREADS"] == 2
    assert threads == [2] * 4


def test_figures_of_older_code_are_still_read(report: ModuleType, tmp_path: Path) -> None:
    old = json.loads((ROOT / "benchmarks/suite.json").read_bytes())
    old["environment"].pop("session_options", None)
    for row in old["rows"]:
        row.pop("threads", None)
    (tmp_path / "suite.json").write_text(json.dumps(old))
    table = report.read(tmp_path / "suite.json")
    assert table.markdown() == (ROOT / "benchmarks/suite.md").read_text()


def test_a_column_that_older_code_did_not_have_was_not_run(
    report: ModuleType, tmp_path: Path
) -> None:
    table = suite(report)
    del table.rows[0].cells["OpenVINO"]
    assert table.markdown().splitlines()[2].endswith("| not run | 1.01 |")
    report.draw(table, tmp_path / "old.svg")


def test_figures_that_cannot_be_read_are_named_in_one_line(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "suite.json").write_text('{"rows": [{"model": "chain"}], "ranks": null}')
    monkeypatch.setattr(sys, "argv", ["bench.py", "--report", "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"bench: suite\.json is stale or broken, .*`layers`.*"):
        bench.main()
    with pytest.raises(UsageError, match=r"architectures\.json is stale or broken"):
        bench.publish(tmp_path, "architectures")


@pytest.mark.parametrize("kind", ["folded", "exchanged", "padded"])
def test_a_model_changed_in_one_way_alone_is_timed(
    measuring: ModuleType, report: ModuleType, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def optimize(*args: object, **more: object) -> Result:
        counts = SimpleNamespace(**{"folded": 0, "exchanged": 0, "padded": 0} | {kind: 3})
        report = SimpleNamespace(sites=[1], summary=counts, written="out.onnx", search=None)
        return Result(None, Plan(), report)

    def timed(model: Path, out: Path, changed: int | None, options: object, *, is_layer: bool):
        return report.Cell(note="faster", folded=changed), None

    monkeypatch.setattr(measuring, "load", lambda model: None)
    monkeypatch.setattr(measuring, "IntoFile", lambda *args: None)
    monkeypatch.setattr(measuring, "optimize", optimize)
    monkeypatch.setattr(measuring, "timed_pair", timed)
    monkeypatch.setattr(measuring, "pad_channels", lambda *args: 0)
    monkeypatch.setattr(measuring, "against_openvino", lambda *args: report.NOT_RUN)
    monkeypatch.setattr(measuring, "shares", lambda *args: None)
    search = SearchOptions(provider=Provider.CPU)
    row, _ = measuring.measure(Path("pnet.onnx"), search, 1.0, is_layer=False)
    assert (row.cells["auto"].folded, row.cells["auto"].note) == (3, "faster")


def test_a_profile_is_summed_by_kind_of_node(scripts: Path, report: ModuleType) -> None:
    times = [("Conv", 50.0, 0.5), ("FusedConv", 10.0, 0.2), ("Gemm", 3.0, None)]
    times += [("ReorderInput", 7.0, None), ("Concat", 3.0, 1.0), ("PRelu", 27.0, 0.1)]
    nodes = [
        NodeTime(name=f"{op}_{index}", op=op, provider="CPU", us=us, reached=reached)
        for index, (op, us, reached) in enumerate(times)
    ]
    shares = importlib.import_module("benchmark.profile").Shares.of(nodes)
    assert shares.layers == pytest.approx(0.63)
    assert shares.copies == pytest.approx(0.10)
    assert shares.others == {"PRelu": pytest.approx(0.27)}
    assert shares.reached == pytest.approx((25 + 2) / 60)
    row = report.Row(model="net", layers=3, shares={"original": shares})
    lines = report.profiles([row, report.Row(model="old", layers=1)])
    spent = "layers 63% (at 45% of the limit), copies 10%, PRelu 27%"
    assert lines[-1] == f"| net | {spent} | as it is |"


@needs_prelu
def test_layers_are_compared_as_they_are_beside_companions(
    measuring: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = save(build(nets.WITH_PRELU), tmp_path / "model.onnx")
    saved = {"first": 1.0, "prelu": 2.0, "second": 1.0}
    report, _ = nets.outcome(model, monkeypatch, saved)
    search = SearchOptions(store=model.with_name("store.sqlite"))
    layers = measuring.compared(model, report, report.search, search)
    assert len(layers) == report.search.layers == 2
    assert "LeakyRelu" in layers[0].subject


def test_a_suite_runs_at_each_number_of_threads_and_is_kept_after_every_model(
    bench: ModuleType,
    report: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = tmp_path / "architectures.json"
    seen: list[tuple[str, int, int]] = []

    def measure(model: Path, search: SearchOptions, budget: float, *, is_layer: bool):
        seen.append((model.stem, search.threads, len(bench.read(table).rows)))
        cells = {"auto": report.Cell(note="faster", ratio=2.0, low=1.9, high=2.1)}
        row = report.Row(model=model.stem, layers=2, threads=search.threads, cells=cells)
        subject = f"{model.stem} at {search.threads}"
        return row, [report.Compared(subject, 1.5, [1.0, 2.0, 3.0], [2.0, 3.0, 4.0])]

    monkeypatch.setattr(bench, "measure", measure)
    command = f"bench.py --suite architectures --out {tmp_path} one.onnx two.onnx"
    monkeypatch.setattr(sys, "argv", command.split())
    bench.main()
    assert seen == [("one", 1, 0), ("one", 2, 1), ("two", 1, 2), ("two", 2, 3)]
    text = (tmp_path / "architectures.md").read_text()
    assert "| one, 2 threads | 2 |" in text
    assert ", 1 and 2 threads, load " in text
    assert text in capsys.readouterr().out
    assert (tmp_path / "architectures.svg").exists()
    assert list(bench.read(table).ranks.layers) == ["one at 1", "two at 1"]
    names = ["one", "one, 2 threads", "two", "two, 2 threads"]
    assert [str(entry.row) for entry in bench.history(tmp_path)] == names
    bench.main()  # a second run adds its lines
    assert [str(entry.row) for entry in bench.history(tmp_path)] == 2 * names
    assert "<!-- two, 2 threads -->" in (tmp_path / "history.svg").read_text()


def test_a_model_that_is_measured_again_replaces_its_row_alone(
    bench: ModuleType, report: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table = suite(report)
    rows = [*table.rows, report.Row(model="other", layers=1)]
    path = tmp_path / "suite.json"
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(table, rows=rows)))
    again = report.Row(model="chain", layers=7, cells=table.rows[0].cells)
    monkeypatch.setattr(bench, "measure", lambda *arguments, is_layer: (again, []))
    monkeypatch.setattr(sys, "argv", f"bench.py --out {tmp_path} chain.onnx".split())
    bench.main()
    assert bench.read(path).rows == [again, rows[1]]
    assert bench.read(path).ranks == table.ranks


def test_the_page_of_published_layers_ends_with_what_was_published(
    bench: ModuleType, report: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "published_layers.json").write_bytes(msgspec.json.encode(suite(report)))
    bench.publish(tmp_path, "published_layers")
    text = (tmp_path / "published_layers.md").read_text()
    assert text.startswith(suite(report).markdown())
    assert "| rwkv_depthwise | 768->768 768 depthwise | 1x768x768 | 14 ms PyTorch, " in text


def test_on_a_gpu_all_suites_take_turns_until_the_time_is_over(
    bench: ModuleType,
    report: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    now, seen, checks = [0.0], [], []
    monkeypatch.setattr(bench, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(bench, "check_conv", checks.append)
    monkeypatch.setattr(bench, "isolated", lambda function, *arguments: function(*arguments))
    options = RuntimeOptions(provider=Provider.CUDA)
    machine = bench.Machine(options, "H100", {"bytes of a copy": 2.9e12})
    monkeypatch.setattr(bench.Machine, "of", lambda provider, out: machine)
    for name in bench.ON_GPU:
        paths = [Path(f"{name}_{number}.onnx") for number in range(1 + (name == "layers"))]
        subject = bench.SUITES[name]._replace(models=lambda device, paths=paths: paths)
        monkeypatch.setitem(bench.SUITES, name, subject)

    def measure(model: Path, search: SearchOptions, budget: float, *, is_layer: bool):
        assert (search.provider, is_layer) == (Provider.CUDA, not model.stem.startswith("suite"))
        seen.append(model.stem)
        now[0] += 30
        cell = report.Cell(note="faster", ratio=2.0, low=1.9, high=2.1)
        return report.Row(model=model.stem, layers=1, cells={"auto": cell}), []

    monkeypatch.setattr(bench, "measure", measure)
    drawn: list[str] = []
    monkeypatch.setattr(bench, "draw", lambda suite, path: drawn.append(path.stem))
    monkeypatch.setattr(bench, "draw_history", lambda *_: None)
    command = f"bench.py --provider cuda --seconds 100 --out {tmp_path}"
    monkeypatch.setattr(sys, "argv", command.split())
    bench.main()
    first, second = ["layers_0", "published_layers_0", "users_0"], ["suite_0", "layers_1"]
    assert (seen, checks) == (first, [])
    assert "no time for 2 more" in capsys.readouterr().err
    assert "Not measured yet: suite_0.\n" in (tmp_path / "suite.md").read_text()
    bench.main()
    assert sorted(seen[3:]) == sorted(second)
    text = (tmp_path / "layers.md").read_text()
    assert "| model | layers | original ms | factor 8 | auto | channel pad | PyTorch |" in text
    assert "H100; 2.9 T bytes of a copy/s." in text
    assert (
        "| rwkv_depthwise | 768->768 768 depthwise | 32x768x768 | 14 ms PyTorch, "
        in (tmp_path / "published_layers.md").read_text()
    )
    assert drawn == 2 * [*bench.ON_GPU]


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_model_that_does_not_run_ends_the_run_only_if_the_device_is_lost(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_lost: bool
) -> None:
    def measure(model: Path, *arguments: object, is_layer: bool) -> None:
        raise UnverifiedError("one.onnx does not run: out of memory")

    def check_conv(options: RuntimeOptions) -> None:
        if is_lost:
            raise UnverifiedError("the device does not answer")

    machine = bench.Machine(RuntimeOptions(provider=Provider.CUDA), "H100")
    monkeypatch.setattr(bench.Machine, "of", lambda provider, out: machine)
    monkeypatch.setattr(bench, "measure", measure)
    monkeypatch.setattr(bench, "draw", lambda *_: None)
    monkeypatch.setattr(bench, "draw_history", lambda *_: None)
    monkeypatch.setattr(bench, "check_conv", check_conv)
    monkeypatch.setattr(bench, "isolated", lambda function, *arguments: function(*arguments))
    command = f"bench.py --provider cuda --suite layers --out {tmp_path} one.onnx two.onnx"
    monkeypatch.setattr(sys, "argv", command.split())
    if is_lost:
        with pytest.raises(SystemExit, match="bench: the device does not answer"):
            bench.main()
        kept = bench.read(tmp_path / "layers.json")
        assert (kept.rows, kept.pending) == ([], ["two", "one"])
    else:
        bench.main()
        text = (tmp_path / "layers.md").read_text()
        assert text.startswith("| model | layers | original ms | factor 8")
        assert text.count("one.onnx does not run |") == 2 * 4


def test_the_page_of_a_gpu_says_what_is_void_and_who_reaches_the_claim(report: ModuleType) -> None:
    def gpu(before: int, after: int, *reasons: str) -> Gpu:
        return Gpu(
            driver="580.65",
            cuda="12.9",
            cudnn="9.14.0",
            before=GpuState(sm_mhz=before),
            after=GpuState(sm_mhz=after),
            throttled=[[], [*reasons]],
        )

    def row(model: str, *seen: Gpu, **ratios: float) -> object:
        cells = {
            name.replace("_", " "): report.Cell(note="faster", ratio=r, low=r, high=r)
            for name, r in ratios.items()
        }
        return report.Row(model=model, layers=1, cells=cells, gpu=[*seen])

    steady = gpu(1980, 1980)
    elsewhere = report.Cell(note="slower", ratio=9.0, low=9.0, high=9.0, fallback="FALLBACK in it")
    rows = [
        row("1to4_3x3_float16", steady, auto=3.2, PyTorch=1.05, channel_pad=0.5),
        row("1to1_3x3_float16", gpu(1980, 1755), auto=6.0, PyTorch=2.5),
        row("1to16_3x3", steady, auto=5.0),
        row("3to16_3x3_float16", gpu(1980, 1975, "SwPowerCap"), factor_8=5.0),
        msgspec.structs.replace(row("1to9_float16", steady), cells={"auto": elsewhere}),
    ]
    suite = report.Suite(
        rows=rows, ranks=None, environment=None, device="H100", ceilings={"bytes of a copy": 3e12}
    )
    text = suite.markdown()
    assert "H100; driver 580.65, CUDA 12.9, cuDNN 9.14.0; 3 T bytes of a copy/s.\n" in text
    assert "VOID: 1to1_3x3_float16 (1980 to 1755 MHz); 3to16_3x3_float16 (SwPowerCap).\n" in text
    assert "1to9_float16, auto: FALLBACK in it.\n" in text
    assert "| 1to9_float16 | 1 |  | not run | fell back |" in text
    assert "1 of 3 float16 layers with one input channel gain 3x" in text
    assert "2 gain at all" in text


def test_a_layer_on_a_gpu_is_measured_in_every_way_and_says_where_it_ran(
    measuring: ModuleType,
    report: ModuleType,
    pretended: object,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The GPU is a CPU, to which every layer has fallen back."""
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(reasons=4))
    monkeypatch.setattr(session, "check_options", lambda *_: None)
    monkeypatch.setattr(successive_halving, "peak_speed", lambda setting: 1e12)
    monkeypatch.setattr(measuring, "isolated", lambda function, *arguments: function(*arguments))
    monkeypatch.setattr(measuring, "against_pytorch", lambda *_: report.Cell(note="not installed"))
    path = tmp_path / "layer.onnx"
    layer = importlib.import_module("nets.layers").Layer((1, 2), (1, 5), 1, "float32", (8, 16, 64))
    onnx.save(layer.model(has_neighbour=True), path)
    search = SearchOptions(
        provider=Provider.CUDA,
        effort=Effort.QUICK,
        time_budget=0.05,
        store=tmp_path / "store.sqlite",
    )
    row, compared = measuring.measure(path, search, 0.05, is_layer=True)
    assert (row.model, row.layers) == ("layer", 1)
    assert list(row.cells) == ["factor 8", "auto", "channel pad", "PyTorch"]
    folded = row.cells["factor 8"]
    assert (folded.folded, str(folded)) == (1, "fell back")
    assert folded.fallback.startswith("FALLBACK in the original model: Conv ")
    assert folded.low <= folded.ratio <= folded.high
    assert [len(it.measured) == len(it.predicted) >= 1 for it in compared] == [True]
    assert {gpu.name for gpu in row.gpu} == {"Fake GPU"}
    for gpu in row.gpu:
        assert report.void_by(gpu).endswith("SwPowerCap")
