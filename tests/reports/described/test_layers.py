"""A brief report of `optimize` fits a screen; details, JSON and HTML hold everything."""

from __future__ import annotations

import html
import io
import json
import re
from pathlib import Path

import onnx
import pytest
from msgspec.structs import replace
from onnx import helper, parser

from tests.cli.tool import on_terminal, widthfold
from tests.reports.sample import passing
from tests.small_models import save
from widthfold_onnx.refusal import Code
from widthfold_onnx.reports import console
from widthfold_onnx.reports.described import described
from widthfold_onnx.results import (
    AssumedSizes,
    CompanionReport,
    Gain,
    OptimizeReport,
    OptimizeSummary,
    PaddedChannels,
    PaddingReport,
    RegionReport,
    SearchReport,
    SiteReport,
    SizeGain,
    Stop,
)

LAYERS = 30
MOST_LINES = 25
ENCODER = "model/encoder/stage_{}/block/depthwise_separable/conv2d/Conv2D"


def layer(number: int, code: str = "folded") -> SiteReport:
    """A layer with a long name; every folded layer is folded in another way."""
    name = ENCODER.format(number)
    if code != "folded":
        reason = f"layer {number}: 192 -> 64 channels; both sides have at least 32 (--max-channels)"
        return SiteReport(node=name, graph="", op="Conv", status="kept", code=code, reason=reason)
    return SiteReport(
        node=name,
        graph="",
        op="Conv",
        status="folded",
        axis="height+width",
        factor=number + 2,
        form="move interleaved+interleaved",
        code="folded",
        reason="1 -> 8 channels became 8 -> 64, guarded (extents)",
        flops_ratio=1.5,
        spread=8.0,
        guard="extents",
        gain=Gain(ratio=1.5 + number, low=1.4 + number, high=1.6 + number, pairs=12),
    )


def optimized(sites: list[SiteReport]) -> OptimizeReport:
    """A report in which all that can happen has happened."""
    gain = Gain(ratio=2.29, low=2.22, high=2.35, pairs=40)
    shapes = {"serving_default_input:0": [1, 43844, 1]}, {"serving_default_input:0": [4, 43844, 1]}
    stop = Stop(node="end", op="Reshape", code="no-rule", reason="no rule runs Reshape")
    folded = sum(site.status == "folded" for site in sites)
    channels = [PaddedChannels(node="conv_1", channels=13, padded=16)]
    return OptimizeReport(
        model="model.onnx",
        sites=sites,
        regions=[
            RegionReport(graph="", folded=[site.node], carried=["Relu r"], stops=[stop])
            for site in sites
        ],
        companions=[
            CompanionReport(
                name="prelu",
                status="exchanged" if folded else "kept",
                nodes=["act"],
                replacements=["Mul, Max"],
                refused=[stop],
                gain=gain,
            ),
            CompanionReport(
                name="crop", status="refused", nodes=[], replacements=[], refused=[stop]
            ),
        ],
        padding=PaddingReport(
            status="padded" if folded else "kept", multiple=4, layers=channels, stops=[stop]
        ),
        summary=OptimizeSummary(
            folded=folded,
            kept=len(sites) - folded,
            refused=0,
            bytes_before=230_000,
            bytes_after=680_000,
            exchanged=int(folded > 0),
        ),
        search=SearchReport(
            provider="cpu",
            threads=1,
            target="cpu-avx512",
            sizes=[
                SizeGain(shapes=each, gain=gain, verdict="faster", original_ms=20.3)
                for each in shapes
            ],
            layers=30,
            forms=2136,
            measured=100,
            pending=2,
            predicted=0,
            interrupted=False,
            store_read_only=False,
            whole=gain,
            accepted=folded > 0,
            bar=1.02 if folded else 2.4,
            folded_setting="all",
            original_setting="extended",
        ),
        assumed=AssumedSizes(open={"serving_default_input:0": ["batch"]}, sizes=list(shapes)),
        written="model.folded.onnx",
        verification=replace(passing(), timing=None),
    )


def screen(report: OptimizeReport, columns: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the lines of a brief report on a terminal."""
    text = io.StringIO()
    terminal = console._Console(
        file=text, width=columns, height=50, force_terminal=True, no_color=True, highlight=False
    )
    monkeypatch.setattr(console, "_console", lambda: terminal)
    console.show(described(report))
    return [line.rstrip() for line in re.sub(r"\x1b\[\d+m", "", text.getvalue()).splitlines()]


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("codes", [["folded"], ["folded", "no-gain"], list("abcdef")])
def test_thirty_layers_fit_a_screen(
    codes: list[str], columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = optimized([layer(at, codes[at % len(codes)]) for at in range(LAYERS)])
    lines = screen(report, columns, monkeypatch)
    assert len(lines) <= MOST_LINES, "\n".join(lines)
    assert max(map(len, lines)) <= columns
    text = " ".join(" ".join(lines).split())
    for part in (
        f"of {LAYERS} Conv nodes folded",
        "2.29x [2.22, 2.35]",
        "serving_default_input:0 1x43844x1",
        "deploy it at level all",
        "verdict: pass;",
        "proof: equal",
    ):
        assert part in text
    assert "region of" not in text
    assert "no rule runs Reshape" not in text


def test_everything_that_was_left_alone_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = ["folded", "no-gain", "no-gain", "already-wide"]
    report = optimized([layer(at, codes[at % 4]) for at in range(8)])
    text = "\n".join(screen(report, 120, monkeypatch))
    summary = "left alone: 4 no-gain, 2 already-wide, companion crop; --details says why"
    assert summary in text
    assert "companion prelu: 1 node became (Mul, Max)\n" in text
    unpadded = replace(report, padding=replace(report.padding, status="kept"))
    assert "companion crop, channels to pad;" in "\n".join(screen(unpadded, 120, monkeypatch))


def test_layers_that_share_a_fold_share_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    alike = [replace(layer(at), axis="width", factor=8, guard="") for at in range(9)]
    other = replace(layer(9), axis="batch", factor=2)
    lines = screen(optimized([*alike, other]), 80, monkeypatch)
    (row,) = (line for line in lines if " width " in line)
    assert row.split()[1:] == ["9", "width", "by", "8", "1.50x", "to", "9.50x"]
    (row,) = (line for line in lines if " batch " in line)
    assert row.endswith(" guarded")
    few = screen(optimized([*alike[:4], other]), 80, monkeypatch)
    assert sum(" width " in line for line in few) == 4


def test_folds_beyond_the_rows_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = screen(optimized([layer(at) for at in range(LAYERS)]), 120, monkeypatch)
    assert "25 of the folded nodes are not listed; see --details" in lines


def test_every_part_of_a_plan_that_does_not_fit_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    misfits = [replace(layer(at, Code.MISFIT), reason=f"reason {at}") for at in range(2)]
    report = optimized([*(layer(at) for at in range(2, 9)), *misfits])
    text = "\n".join(screen(report, 120, monkeypatch))
    assert f"{Code.MISFIT}: reason 0" in text
    assert f"{Code.MISFIT}: reason 1" in text


def deep() -> onnx.ModelProto:
    """A chain of 30 Convs; every third one has a width that the factor does not divide."""
    nodes, values, name = [], [], "x"
    for at in range(LAYERS):
        kernel = "1,1,1,3" if at % 3 else "1,1,1,2"
        pads = "0,1,0,1" if at % 3 else "0,1,0,0"
        values.append(f"float[{kernel}] w{at}")
        nodes.append(f"[layer_{at}_] y{at} = Conv <pads = [{pads}]> ({name}, w{at})")
        name = f"y{at}"
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[1,1,1,64] x) => (float[1,1,1,64] {name}) <{", ".join(values)}> {{ {" ".join(nodes)} }}
    """
    model = parser.parse_model(text)
    del model.graph.value_info[:]
    for at in range(LAYERS):
        size = 3 if at % 3 else 2
        weight = [float(at % 3 - k) / 2 or 0.25 for k in range(size)]
        model.graph.initializer.append(
            helper.make_tensor(f"w{at}", onnx.TensorProto.FLOAT, [1, 1, 1, size], weight)
        )
    return model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(deep(), tmp_path_factory.mktemp("deep") / "model.onnx")


FOLD = ("--factor", 4, "--seeds", 1, "--skip", "layer_7_")


def test_a_deep_model_fits_a_screen_and_its_reports_hold_everything(
    model: Path, tmp_path: Path
) -> None:
    out, report, page = tmp_path / "o.onnx", tmp_path / "r.json", tmp_path / "r.html"
    brief = on_terminal("optimize", model, out, *FOLD, columns=80, env={"NO_COLOR": "1"})
    assert brief.code == 0
    shown = brief.out.rsplit("\x1b[?25h", 1)[-1].replace("\r", "").splitlines()
    assert len([line for line in shown if line != "\x1b[2K"]) <= MOST_LINES, brief.out
    full = widthfold(
        *("optimize", model, out, *FOLD, "--details", "--report", report, "--report", page)
    )
    assert full.code == 0, full.err
    names = {f"layer_{at}_" for at in range(LAYERS)}
    assert {line.split()[0] for line in full.out.splitlines() if line[:6] == "layer_"} == names
    for part in ("not-selected: ", "region of ", "proof: equal: both", "extents:"):
        assert part in full.out
    document, text = json.loads(report.read_text()), html.unescape(page.read_text())
    assert {site["node"] for site in document["sites"]} == names
    assert document["regions"]
    assert document["verification"]["proof"]["primes"]
    for part in (*names, "not-selected: ", "region of ", "extents:"):
        assert part in text


def test_a_pipe_does_not_depend_on_the_width_of_a_terminal(model: Path) -> None:
    narrow, wide = (
        widthfold("optimize", model, *FOLD, env={"COLUMNS": columns, "LINES": "20"}).out
        for columns in ("40", "200")
    )
    assert narrow == wide
    assert any(len(line) > 40 for line in narrow.splitlines())


def test_details_belong_to_the_tables(model: Path) -> None:
    run = widthfold("optimize", model, *FOLD, "--details", "--format", "json")
    assert run.code == 2
    assert run.line == "widthfold: --details belongs to the tables, not to --format json"
