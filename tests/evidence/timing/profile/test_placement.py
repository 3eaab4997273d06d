"""Devices on which nodes ran, from events as the runtime's profiler writes them on a GPU."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from tests.reports.sample import passing
from widthfold_onnx.evidence.timing.profile import (
    PROFILED_RUNS,
    WARM_RUNS,
    fallback_lines,
    fallbacks,
    no_time,
    placement,
    profile,
)
from widthfold_onnx.options import Provider
from widthfold_onnx.reports import github, html, markdown
from widthfold_onnx.reports.console import show
from widthfold_onnx.reports.described import described
from widthfold_onnx.results import NodeTime, VerifyReport

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
RAN = [("conv_1", "Conv", CUDA, 90), ("conv\n2", "FusedConv", CPU, 70), ("size", "Shape", CPU, 1)]


class Profiled:
    """A session that leaves the events of its runs behind."""

    def __init__(self, path):
        self.path, self.events = path, []

    def bound(self, feeds):
        def once():
            for at, (name, op, provider, us) in enumerate(RAN):
                details = {"op_name": op, "provider": provider}
                event = {"cat": "Node", "name": f"{name}_kernel_time", "dur": us, "args": details}
                event["ts"] = len(self.events) * 1000 + at
                self.events += [event, {**event, "name": f"{name}_fence_before", "dur": 999}]
            self.events.append({"cat": "Session", "name": "model_run", "dur": 5})

        return once

    def end_profile(self):
        self.path.write_text(json.dumps(self.events))
        return self.path


@pytest.fixture
def nodes() -> list[NodeTime]:
    return profile(Profiled, {}, no_time)


def timed(nodes: list[NodeTime]) -> dict:
    report = passing()
    assert report.timing is not None
    gone = fallbacks(nodes, Provider.CUDA)
    rewritten = replace(
        report.timing.rewritten, nodes=nodes, fallbacks=gone, providers=placement(nodes)
    )
    return {"original": report.timing.original, "rewritten": rewritten}


@pytest.fixture
def report(nodes: list[NodeTime]) -> VerifyReport:
    sides = timed(nodes)
    result = passing()
    return replace(
        result,
        timing=replace(result.timing, **sides),
        reasons=fallback_lines(sides, Provider.CUDA, heavy=True),
    )


def test_every_node_is_placed(nodes: list[NodeTime]) -> None:
    assert [(n.name, n.op, n.provider, n.us) for n in nodes] == RAN
    assert PROFILED_RUNS > WARM_RUNS
    assert placement(nodes) == {CUDA: 1, CPU: 2}


def test_what_ran_elsewhere_fell_back(nodes: list[NodeTime]) -> None:
    assert [n.name for n in fallbacks(nodes, Provider.CUDA)] == ["conv\n2", "size"]
    assert [n.name for n in fallbacks(nodes, Provider.CPU)] == ["conv_1"]
    assert fallbacks(nodes[:1], Provider.CUDA) == []


def test_a_convolution_that_fell_back_is_an_alarm_and_a_shape_a_remark(
    nodes: list[NodeTime],
) -> None:
    sides = timed(nodes)
    assert fallback_lines(sides, Provider.CUDA, heavy=True) == [
        rf"FALLBACK in the rewritten model: FusedConv conv\x0a2 ran on {CPU}, not on cuda"
    ]
    assert fallback_lines(sides, Provider.CUDA, heavy=False) == [
        f"in the rewritten model: Shape size ran on {CPU}, not on cuda"
    ]


def test_many_are_counted() -> None:
    many = [NodeTime(name=f"n{i}", op="Conv", provider=CPU, us=1.0) for i in range(9)]
    (line,) = fallback_lines(timed(many), Provider.CUDA, heavy=True)
    assert "Conv n4, 4 more ran on" in line


def test_every_form_shows_it(report: VerifyReport, capsys, tmp_path) -> None:
    for is_full in (False, True):
        show(described(report, is_full=is_full))
        out = capsys.readouterr().out
        assert "fell back to" in out
        (line,) = (line for line in out.splitlines() if "FusedConv  " in line)
        assert line.rstrip().endswith(CPU)
    (line,) = (line for line in out.splitlines() if "conv_1  " in line)
    assert CUDA not in line
    assert "FALLBACK in the rewritten model: FusedConv" in out
    assert "fell back" in html.page(report)
    assert "FALLBACK" in markdown.render(report)
    text = github.render(report, tmp_path / "m.onnx")
    assert text.startswith("::warning ")
    assert "FALLBACK" in text


def test_without_fallback_nothing_is_said(capsys) -> None:
    show(described(passing()))
    assert "fell back" not in capsys.readouterr().out
