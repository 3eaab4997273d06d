"""Options of the provider and of sessions reach every session that `verify` opens."""

from __future__ import annotations

import json
import math

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.evidence.compared import compare_models
from tests.folding import optimize, verify
from widthfold_onnx import UsageError
from widthfold_onnx.evidence.integers import run_on_integers
from widthfold_onnx.evidence.proof.program import Program
from widthfold_onnx.evidence.timing.speed import time_models
from widthfold_onnx.model.loader import load
from widthfold_onnx.options import FoldOptions, Provider, VerifyOptions
from widthfold_onnx.runtime import contest
from widthfold_onnx.runtime import session as session_module
from widthfold_onnx.runtime.kernels import u8s8_error

CHOSEN = {"some_option": "3"}
OF_SESSIONS = {"session.some_option": "4"}
GIVEN = (CHOSEN, OF_SESSIONS)
OPTIONS = VerifyOptions(
    provider=Provider.CPU,
    provider_options=CHOSEN,
    session_options=OF_SESSIONS,
    seeds=1,
    truth_work=0,
    time_budget=0.2,
)


@pytest.fixture
def pair(tmp_path):
    weight = np.random.default_rng(0).standard_normal((3, 2, 3, 3)).astype(np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"], "conv", pads=[1] * 4)
    ends = [
        helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 2, 8, 16]),
        helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 3, 8, 16]),
    ]
    graph = helper.make_graph(
        [node], "g", ends[:1], ends[1:], [numpy_helper.from_array(weight, "w")]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    original, folded = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(model, original)
    assert optimize(original, folded, FoldOptions(factor=4), None).summary.folded == 1
    return original, folded


@pytest.fixture
def opened(monkeypatch):
    """Arguments of every session: the provider's options, its own, and whether it may use TF32."""
    u8s8_error()  # asks once, with a session of its own
    seen, last = [], {}
    ranking, entries = session_module.ranking, session_module.entries

    def of_session(chosen, folder):
        last.clear()
        last.update(chosen)
        return entries({}, folder)

    def recording(provider, chosen, threads, *, tf32):
        seen.append((dict(chosen), dict(last), tf32))
        return ranking(provider, {}, threads, tf32=tf32)

    monkeypatch.setattr(session_module, "entries", of_session)
    monkeypatch.setattr(session_module, "ranking", recording)
    monkeypatch.setattr(session_module, "check_options", lambda *_: None)
    monkeypatch.setattr(session_module, "check_entries", lambda *_: None)
    monkeypatch.setattr(contest, "isolated", lambda function, *args: function(*args))
    return seen


def test_they_reach_the_comparison_and_the_shaken_copies(pair, opened):
    model = onnx.load(pair[1])
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor) * np.float32(1.5)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    onnx.save(model, pair[1])
    result = compare_models(*pair, OPTIONS)
    assert result.verdict == "fail"
    # Both models at two levels, the original as it is deployed, and four shaken copies of it.
    assert opened == [(*GIVEN, False)] * 9


def test_they_reach_the_run_on_integers(pair, opened):
    before, after = (Program.of(onnx.load(path), None) for path in pair)
    result = run_on_integers(before, after, {"x": (1, 2, 8, 16)}, OPTIONS)
    assert (result.verdict, result.nodes) == ("exact", 1)
    assert opened
    assert {json.dumps(entry) for entry in opened} == {json.dumps((*GIVEN, False))}


def test_they_reach_clock_profile_and_memory_where_tf32_stays_as_chosen(pair, opened):
    timing = time_models(*map(load, pair), OPTIONS, (), load=0.0)
    assert math.isfinite(timing.speedup)
    # Two settings of both models, several sessions of each, a profile and the memory of both.
    assert len(opened) >= 4 + 4 + 4
    assert {json.dumps(entry) for entry in opened} == {json.dumps((*GIVEN, True))}


def test_the_processor_takes_none_and_says_so(pair):
    with pytest.raises(UsageError, match="provider cpu takes no options: some_option=3"):
        verify(*pair, OPTIONS)
