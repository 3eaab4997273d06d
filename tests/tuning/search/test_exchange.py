"""Companions that the search takes, by the time of the whole model with them."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.small_models import build, save
from tests.tuning.search.nets import WITH_PRELU, changed, outcome
from tests.tuning.world import folded
from widthfold_onnx.options import Companion, Effort
from widthfold_onnx.runtime import kernels
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.tuning.search.timers import time_over_processes


@pytest.fixture(autouse=True)
def with_exact_prelu(monkeypatch: pytest.MonkeyPatch) -> None:
    """No PRelu runs here, so it does not matter what the runtime's PRelu makes of an Inf."""
    monkeypatch.setattr(kernels, "prelu_keeps_inf", lambda: True)


def slower(layer: dict[str, Any], form: dict[str, Any]) -> tuple[float, float]:
    """No form of any layer pays alone."""
    return 0.5, 0.4


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save(build(WITH_PRELU), tmp_path / "model.onnx")


@pytest.mark.parametrize(
    ("saved", "expected"),
    [
        ({"first": 1.0, "prelu": 2.0, "second": 1.0}, {"first", "prelu", "second"}),
        ({"first": 1.0, "prelu": -0.1, "second": 1.0}, {"first", "second"}),
        ({"first": -0.5, "prelu": 2.0, "second": -0.5}, {"prelu"}),
        ({"first": -2.0, "prelu": 2.0, "second": 1.0}, {"prelu", "second"}),
        ({"first": -1.0, "prelu": 0.0, "second": -1.0}, set()),
    ],
)
def test_each_is_taken_for_what_it_saves(
    model: Path, monkeypatch: pytest.MonkeyPatch, saved: dict[str, float], expected: set[str]
) -> None:
    report, here = outcome(model, monkeypatch, saved)
    assert changed(model.with_name("out.onnx")) == expected
    assert here.compared[0] == (frozenset(), {"prelu"})
    (companion,) = report.companions
    assert companion.gain is not None
    assert companion.gain.ratio == pytest.approx(10 / (10 - saved["prelu"]))
    assert companion.status == ("exchanged" if "prelu" in expected else "kept")
    assert companion.reason == ("" if "prelu" in expected else "not surely faster")
    counts = report.summary
    assert (counts.exchanged, counts.folded) == ("prelu" in expected, len(expected - {"prelu"}))
    assert counts.is_changing == bool(expected)
    finals = {level for timer, level in here.levels if timer is time_over_processes}
    # With a companion the levels of another model than the original were timed.
    assert finals == {None if "prelu" in expected else Level.ALL}


@pytest.mark.parametrize(("saved", "expected"), [(0.0, True), (0.04, True), (-0.5, False)])
def test_none_is_taken_that_is_slower_on_smooth_inputs(
    model: Path, monkeypatch: pytest.MonkeyPatch, saved: float, expected: bool
) -> None:
    nodes = {"first": -1.0, "prelu": 2.0, "second": -1.0}
    report, _ = outcome(model, monkeypatch, nodes, steady={**nodes, "prelu": saved})
    (companion,) = report.companions
    assert companion.gain is not None and companion.gain_on_smooth is not None
    assert companion.gain.ratio == pytest.approx(10 / 8)
    assert companion.gain_on_smooth.ratio == pytest.approx(10 / (10 - saved))
    assert companion.status == ("exchanged" if expected else "kept")
    assert companion.reason == ("" if expected else "slower on smooth inputs")


@pytest.mark.parametrize(
    ("saved", "expected"),
    [
        ({"first": -1.0, "part": 2.0}, True),
        ({"first": -3.0, "part": 2.0}, False),
        ({"first": 1.0, "part": -0.5}, False),
    ],
)
def test_one_for_lifted_layers_is_taken_if_it_helps_these_and_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved: dict[str, float], expected: bool
) -> None:
    """Lifted, `first` saves so many seconds and each part of `second` as many; alone nothing is."""
    text = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,1,32] x) => (float[1,2,32] y) <float[2,1,3] w1, float[4,2,3] w2>
{
    [first] a = Conv <pads = [1,1]> (x, w1)
    [second] b = Conv <pads = [1,1]> (a, w2)
    [part] c, d = Split <axis = 1> (b)
    [times] y = Mul (c, d)
}"""
    model = save(build(text), tmp_path / "model.onnx")
    all_saved = {"second": 0.0, "part/widthfold/conv": 0.0, **saved}
    report, here = outcome(model, monkeypatch, all_saved, alone=slower)
    lifted = frozenset({"first", "part/widthfold/conv", "part"})
    together = [(frozenset(), lifted), ({"first", "second"}, lifted)]
    assert here.compared[:3] == [(frozenset(), frozenset()), *together]
    (companion,) = report.companions
    assert (companion.status, companion.replacements) == (
        "exchanged" if expected else "kept",
        ["Conv, Conv"],
    )
    assert (companion.reason == "") == expected
    quick, _ = outcome(model, monkeypatch, all_saved, alone=slower, search={"effort": Effort.QUICK})
    assert quick.companions[0].status == companion.status
    assert not expected or quick.summary.folded == 3


@pytest.mark.parametrize(
    ("saved", "expected", "folded_names"),
    [
        ({"cut": 2.0, "first": 1.0, "second": 1.0}, True, {"first", "second"}),
        ({"cut": 2.0, "first": -1.0, "second": -1.0}, True, set()),
        ({"cut": 0.0, "first": 1.0, "second": 1.0}, False, set()),
        ({"cut": -1.0, "first": -1.0, "second": -1.0}, False, set()),
    ],
)
@pytest.mark.parametrize("effort", [Effort.THOROUGH, Effort.QUICK])
def test_one_may_help_by_itself_and_is_not_lifted_for_that(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    saved: dict[str, float],
    expected: bool,
    folded_names: set[str],
    effort: Effort,
) -> None:
    """Without its Slice the model saves what `cut` says; lifted, each layer as much as it says.

    With the Slice between them the layers are no neighbours.
    """
    text = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,1,32] x) => (float[1,2,32] y)
<float[2,1,3] w1, float[2,2,3] w2, int64[1] s = {0}, int64[1] e = {-2}, int64[1] a = {2}>
{
    [first] b = Conv <pads = [2,2]> (x, w1)
    [cut] c = Slice (b, s, e, a)
    [second] y = Conv <pads = [1,1]> (c, w2)
}"""
    model = save(build(text), tmp_path / "model.onnx")

    def names(path: Path) -> frozenset[str]:
        graph = onnx.load(path).graph
        is_cut = all(node.op_type != "Slice" for node in graph.node)
        return folded(path) | ({"cut"} if is_cut else set())

    report, here = outcome(
        model, monkeypatch, saved, names=names, alone=slower, search={"effort": effort}
    )
    assert here.compared[0] == (frozenset(), {"cut"})
    (companion,) = report.companions
    assert (companion.name, companion.replacements) == ("crop", ["Conv"])
    assert companion.status == ("exchanged" if expected else "kept")
    out = names(model.with_name("out.onnx"))
    assert out == ({"cut"} | folded_names if expected else set())


def test_one_that_does_not_branch_on_data_is_timed_on_random_inputs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,4,31,1] x) => (float[1,4,31,1] y) <float[1] c = {0.5}> { [scalar] y = Mul (x, c) }"""
    model = save(build(text), tmp_path / "model.onnx")
    report, _ = outcome(model, monkeypatch, {"scalar": 2.0}, steady={"scalar": -2.0})
    (companion,) = report.companions
    assert (companion.status, companion.gain_on_smooth) == ("exchanged", None)


def test_without_layers_the_stored_final_is_one_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trial of the companion had one session, at the setting that suits the companion."""
    text = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,1,4,32] x) => (float[1,1,4,32] y) <float[1] s = {0.25}> { [prelu] y = PRelu (x, s) }"""
    model = save(build(text), tmp_path / "model.onnx")
    report, here = outcome(model, monkeypatch, {"prelu": 2.0})
    assert here.compared == [(frozenset(), {"prelu"})] * 3
    assert report.search is not None and report.search.folded_setting == "all"


def test_stored_inputs_alone_are_timed(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = model.with_name("x.npy")
    np.save(data, np.ones((1, 1, 4, 32), np.float32))
    nodes = {"first": -1.0, "prelu": 2.0, "second": -1.0}
    steady, settings = {**nodes, "prelu": -1.0}, {"inputs": (str(data),)}
    report, _ = outcome(model, monkeypatch, nodes, steady=steady, search=settings)
    (companion,) = report.companions
    assert (companion.status, companion.gain_on_smooth) == ("exchanged", None)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_other_stored_inputs_are_measured_anew(
    model: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def store(number: float) -> Path:
        data = np.full((1, 1, 4, 32), number, np.float32)
        if kind == "file":
            np.save(model.with_name("x.npy"), data)
            return model.with_name("x.npy")
        folder = model.with_name("data") / "test_data_set_0"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "input_0.pb").write_bytes(numpy_helper.from_array(data).SerializeToString())
        return folder.parent

    for number, is_new in ((1.0, True), (1.0, False), (2.0, True)):
        settings = {"inputs": (str(store(number)),)}
        _, here = outcome(
            model, monkeypatch, {"first": 1.0, "prelu": 2.0, "second": 1.0}, search=settings
        )
        assert bool(here.compared) == is_new


def test_a_second_run_measures_nothing_and_writes_the_same(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = {"first": 1.0, "prelu": 2.0, "second": 1.0}
    first, _ = outcome(model, monkeypatch, saved)
    content = model.with_name("out.onnx").read_bytes()
    for settings in ({}, {"measure": False}):
        again, here = outcome(model, monkeypatch, saved, search=settings)
        assert not here.compared
        assert model.with_name("out.onnx").read_bytes() == content
        assert again.companions == first.companions


def test_unmeasured_none_is_taken(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report, here = outcome(model, monkeypatch, {}, search={"measure": False, "target": "cpu-avx2"})
    (companion,) = report.companions
    assert (companion.status, companion.reason, here.compared) == ("kept", "not measured", [])


def test_none_is_tried_where_none_is_wanted(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = {"first": 1.0, "prelu": 2.0, "second": 1.0}
    report, _ = outcome(model, monkeypatch, saved, companions=(Companion.NONE,))
    assert report.companions == []
    assert changed(model.with_name("out.onnx")) == {"first", "second"}


@pytest.mark.parametrize("steady", [float("nan"), 1.0])
def test_one_that_does_not_run_is_not_taken(
    model: Path, monkeypatch: pytest.MonkeyPatch, steady: float
) -> None:
    """Nor is its gain that on other inputs."""
    saved = {"first": 1.0, "prelu": float("nan"), "second": 1.0}
    report, _ = outcome(model, monkeypatch, saved, steady={**saved, "prelu": steady})
    (companion,) = report.companions
    assert (companion.status, companion.gain) == ("kept", None)
    assert changed(model.with_name("out.onnx")) == {"first", "second"}


def test_frozen_weights_are_judged_with_all_else(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The original has its weights as inputs in every comparison."""
    proto = onnx.load(model)
    for tensor in proto.graph.initializer:
        port = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        proto.graph.input.append(port)
    save(proto, model)
    saved = {"first": 1.0, "prelu": 2.0, "second": 1.0}
    report, here = outcome(model, monkeypatch, saved)
    assert (report.summary.is_changing, report.companions[0].status) == (False, "refused")
    assert not here.compared
    report, here = outcome(model, monkeypatch, saved, freeze_weights=True)
    assert here.compared[0] == (frozenset(), {"prelu"})
    assert (report.summary.frozen, report.summary.folded, report.summary.exchanged) == (3, 2, 1)
    out = onnx.load(model.with_name("out.onnx"))
    assert [value.name for value in out.graph.input] == ["x"]


IN_FUNCTIONS = """
<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
g (float[1,1,4,32] x) => (float[1,1,4,32] y)
<float[2,1,1,3] w1, float[1,2,1,3] w2, float[1] s = {0.25}>
{
    a = own.block (x, w1, s)
    b = Conv <pads = [0,1,0,1]> (a, w2)
    c = own.act (b, s)
    d = own.block (c, w1, s)
    y = Conv <pads = [0,1,0,1]> (d, w2)
}
<domain: "own", opset_import: ["" : 17]>
block (x, w, s) => (z) { t = Conv <pads = [0,1,0,1]> (x, w)  z = PRelu (t, s) }
<domain: "own", opset_import: ["" : 17]>
act (x, s) => (z) { t = Neg (x)  z = PRelu (t, s) }"""


def test_a_companion_that_renames_nodes_may_be_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It inlines act, too, so the second block's Conv has another name than in the original."""
    model = save(build(IN_FUNCTIONS), tmp_path / "model.onnx")
    monkeypatch.setattr("widthfold_onnx.tuning.search.gains_over_sizes", lambda finals: False)
    report, _ = outcome(model, monkeypatch, defaultdict(lambda: 0.5))
    assert (tmp_path / "out.onnx").read_bytes() == model.read_bytes()
    assert [site.code for site in report.sites] == ["no-gain"] * 4
    reasons = [site.reason for site in report.sites]
    assert sum("in the model with companions only" in reason for reason in reasons) == 1
