"""Times of nodes, read from profiles of the runtime."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from onnx import parser

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.timing import profile as profile_module
from widthfold_onnx.evidence.timing.profile import (
    PROFILED_RUNS,
    WARM_RUNS,
    no_time,
    placement,
    profile,
)
from widthfold_onnx.options import Provider, RuntimeOptions
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.runtime.session import open_session

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'


class Profiled:
    """A session that writes the given durations (us) of each node, one list per run."""

    def __init__(self, seconds, *nodes):
        self.seconds, self.nodes = seconds, nodes
        self.now, self.runs = 0.0, 0
        self.prefix = None

    def open_with(self, prefix):
        self.prefix = prefix
        return self

    def bound(self, feeds):
        assert feeds == {"x": 1}

        def once():
            self.now += self.seconds
            self.runs += 1

        return once

    def end_profile(self):
        events = [{"cat": "Session", "name": "model_loading", "dur": 999}]
        now = 0
        for run in range(self.runs):
            for name, provider, durations in self.nodes:
                event = {"cat": "Node", "args": {"op_name": "Op", "provider": provider}, "ts": now}
                events.append({**event, "name": f"{name}_fence_before", "dur": 999})
                events.append({**event, "name": f"{name}_kernel_time", "cat": "Kernel", "dur": 999})
                for dur in durations(run):
                    events.append({**event, "name": f"{name}_kernel_time", "dur": dur, "ts": now})
                    now += dur
        path = self.prefix.with_suffix(".json")
        path.write_text(json.dumps(events))
        return path


@pytest.fixture
def profiled(monkeypatch):
    def run(seconds, *nodes, least=no_time):
        session = Profiled(seconds, *nodes)
        monkeypatch.setattr(
            profile_module, "time", SimpleNamespace(perf_counter=lambda: session.now)
        )
        return profile(session.open_with, {"x": 1}, least), session

    return run


def steady(us):
    return lambda run: [us]


def test_nodes_are_listed_slowest_first_and_by_name(profiled):
    nodes, _ = profiled(
        0.0, ("b", "P", steady(5)), ("slow", "Q", steady(70)), ("a", "P", steady(5))
    )
    assert [(n.name, n.op, n.provider, n.us) for n in nodes] == [
        ("slow", "Op", "Q", 70.0),
        ("a", "Op", "P", 5.0),
        ("b", "Op", "P", 5.0),
    ]
    assert placement(nodes) == {"Q": 1, "P": 2}


def test_the_warm_runs_do_not_count_and_the_others_are_averaged(profiled):
    (node,), session = profiled(0.0, ("n", "P", lambda run: [1000 if run < WARM_RUNS else run % 2]))
    assert session.runs == WARM_RUNS + PROFILED_RUNS
    assert node.us == 0.5


def test_a_node_of_a_loop_counts_all_its_turns(profiled):
    (node,), _ = profiled(0.0, ("n", "P", lambda run: [999] * 3 if run < WARM_RUNS else [1, 2, 4]))
    assert node.us == 7.0


def test_what_runs_in_a_body_is_not_counted_twice(monkeypatch):
    """An If in the body of a Loop; what holds a body is written behind what runs in it."""
    run = [
        ("Op", "before", 0, 10),
        ("Op", "turn", 12, 20),
        ("Op", "branch", 35, 6),
        ("If", "choice", 33, 9),
        ("Op", "turn", 42, 22),  # begins as the If ends
        ("Loop", "loop", 10, 60),
        ("Op", "after", 70, 5),
        ("If", "empty", 75, 0),
        ("Op", "last", 75, 3),
    ]
    session = Profiled(0.0)
    monkeypatch.setattr(profile_module, "time", SimpleNamespace(perf_counter=lambda: 0.0))

    def end_profile():
        events = [
            {
                "cat": "Node",
                "name": f"{name}_kernel_time",
                "ts": 100 * turn + ts,
                "dur": dur,
                "args": {"op_name": op, "provider": "P"},
            }
            for turn in range(session.runs)
            for op, name, ts, dur in run
        ]
        path = session.prefix.with_suffix(".json")
        path.write_text(json.dumps(events))
        return path

    session.end_profile = end_profile
    own = {node.name: node.us for node in profile(session.open_with, {"x": 1}, no_time)}
    assert own == {
        "before": 10,
        "turn": 42,
        "branch": 6,
        "choice": 3,
        "loop": 9,
        "after": 5,
        "empty": 0,
        "last": 3,
    }
    assert sum(own.values()) == 78


@pytest.mark.parametrize(("seconds", "runs"), [(0.01, 10), (0.13, 4), (0.3, 2), (60.0, 1)])
def test_a_slow_model_is_profiled_in_fewer_runs(profiled, seconds, runs):
    (node,), session = profiled(
        seconds, ("n", "P", lambda run: [10**6 if run < WARM_RUNS else 8, 1])
    )
    assert session.runs == WARM_RUNS + runs
    assert node.us == 9.0


def test_a_node_is_compared_with_the_least_time_of_all_its_turns(profiled):
    nodes = (
        ("turns", "P", lambda run: [999] * 2 if run < WARM_RUNS else [10, 30]),
        ("tiny", "P", steady(9)),
        ("unknown", "P", steady(99)),
    )
    assert {node.reached for node in profiled(0.0, *nodes)[0]} == {None}
    seconds = {"turns": 8e-6, "tiny": 1e-6, "unknown": None}
    times, _ = profiled(0.0, *nodes, least=lambda name, event: seconds[name])
    reached = {node.name: node.reached for node in times}
    assert reached == {"turns": 0.4, "tiny": None, "unknown": None}


def test_a_real_profile_names_nodes_operators_and_providers(tmp_path):
    path = tmp_path / "m.onnx"
    text = "g (float[64] x) => (float[64] y) { a = Sin(x)\n y = Exp(a) }"
    path.write_bytes(parser.parse_model(HEAD + text).SerializeToString())
    prefixes = []

    def open_with(prefix):
        prefixes.append(prefix)
        return open_session(path, RuntimeOptions(provider=Provider.CPU), Level.ALL, profile=prefix)

    nodes = profile(open_with, {"x": np.ones(64, np.float32)}, no_time)
    assert sorted(node.op for node in nodes) == ["Exp", "Sin"]
    assert placement(nodes) == {"CPUExecutionProvider": 2}
    assert not prefixes[0].parent.exists()
    with pytest.raises(UnverifiedError):
        profile(open_with, {"x": np.ones(63, np.float32)}, no_time)
