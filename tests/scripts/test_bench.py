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
from tests.shared import ROOT
from tests.small_models import build, save
from tests.tuning.search import nets
from widthfold_onnx.errors import UsageError
from widthfold_onnx.options import RuntimeOptions
from widthfold_onnx.pipeline import Result
from widthfold_onnx.results import NodeTime
from widthfold_onnx.rewrite.plan import Plan


@pytest.fixture
def report(scripts: Path) -> ModuleType:
    return importlib.import_module("benchmark.report")


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
    bench: ModuleType, report: ModuleType, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def optimize(*args: object, **more: object) -> Result:
        counts = SimpleNamespace(**{"folded": 0, "exchanged": 0, "padded": 0} | {kind: 3})
        report = SimpleNamespace(sites=[1], summary=counts, written="out.onnx", search=None)
        return Result(None, Plan(), report)

    def timed(model: Path, out: Path, changed: int | None, options: object):
        return report.Cell(note="faster", folded=changed)

    monkeypatch.setattr(bench, "load", lambda model: None)
    monkeypatch.setattr(bench, "IntoFile", lambda *args: None)
    monkeypatch.setattr(bench, "optimize", optimize)
    monkeypatch.setattr(bench, "timed", timed)
    monkeypatch.setattr(bench, "pad_channels", lambda *args: 0)
    monkeypatch.setattr(bench, "against_openvino", lambda *args: report.NOT_RUN)
    monkeypatch.setattr(bench, "shares", lambda *args: None)
    row, _ = bench.measure(Path("pnet.onnx"), bench.SearchOptions(), 1.0)
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
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = save(build(nets.WITH_PRELU), tmp_path / "model.onnx")
    saved = {"first": 1.0, "prelu": 2.0, "second": 1.0}
    report, _ = nets.outcome(model, monkeypatch, saved)
    search = bench.SearchOptions(store=model.with_name("store.sqlite"))
    layers = bench.compared(model, report, report.search, search)
    assert len(layers) == report.search.layers == 2
    assert "LeakyRelu" in layers[0].subject


def test_a_suite_runs_at_each_number_of_threads_and_is_kept_after_every_model(
    bench: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = tmp_path / "architectures.json"
    seen: list[tuple[str, int, int]] = []

    def measure(model: Path, search: bench.SearchOptions, budget: float):
        rows = len(bench.read(table).rows) if table.exists() else 0
        seen.append((model.stem, search.threads, rows))
        cells = {"auto": bench.Cell(note="faster", ratio=2.0, low=1.9, high=2.1)}
        row = bench.Row(model=model.stem, layers=2, threads=search.threads, cells=cells)
        layer = bench.Compared(f"{model.stem} at {search.threads}", 1.5, [1.0, 2.0], [2.0, 3.0])
        return row, [layer]

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
    monkeypatch.setattr(bench, "measure", lambda *arguments: (again, []))
    monkeypatch.setattr(sys, "argv", f"bench.py --out {tmp_path} chain.onnx".split())
    bench.main()
    assert bench.read(path).rows == [again, rows[1]]
    assert bench.read(path).ranks == table.ranks


def test_published_layers_are_models_of_one_node(scripts: Path) -> None:
    """The models have the extents and the weight of the layer on the GPU, in float32."""
    published = importlib.import_module("nets.published_layers")
    build = importlib.import_module("make_models").build
    for entry in published.PUBLISHED:
        layer = entry.on_cpu
        graph = build(str(layer), published.source(entry)).graph  # checks the shapes, too
        (node,), (x,), (y,), (weight,) = graph.node, graph.input, graph.output, graph.initializer
        rows = [[dim.dim_value for dim in it.type.tensor_type.shape.dim] for it in (x, y)]
        assert [tuple(dims) for dims in rows] == list(layer.shapes)
        assert tuple(weight.dims) == layer.weight_shape
        assert node.op_type == ("ConvTranspose" if layer.transposed else "Conv")
        attributes = {it.name: onnx.helper.get_attribute_value(it) for it in node.attribute}
        rank = len(layer.kernel)
        assert (attributes["group"], attributes["strides"]) == (layer.group, [layer.stride] * rank)
        assert (
            list(zip(attributes["pads"][:rank], attributes["pads"][rank:], strict=True))
            == layer.ends
        )


def test_the_page_of_published_layers_ends_with_what_was_published(
    bench: ModuleType, report: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "published_layers.json").write_bytes(msgspec.json.encode(suite(report)))
    bench.publish(tmp_path, "published_layers")
    text = (tmp_path / "published_layers.md").read_text()
    assert text.startswith(suite(report).markdown())
    assert "| rwkv_depthwise | 768->768 768 depthwise | 1x768x768 | 14 ms PyTorch, " in text
