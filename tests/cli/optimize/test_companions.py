"""Companions and frozen weights as a user meets them."""

from __future__ import annotations

import html
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import helper, numpy_helper

import widthfold_onnx
from tests.cli.tool import QUICK, widthfold
from tests.running import run
from tests.small_models import build, save
from widthfold_onnx.cli.precommit import precommit_command
from widthfold_onnx.runtime import kernels

NET = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,1,4,32] x) => (float[1,1,4,32] y)
<float[3,1,1,3] w1, float[1,3,1,3] w2, float[3,1,1] s = {0.25, 0.5, 1.0}>
{
    [first] a = Conv <pads = [0,1,0,1]> (x, w1)
    [act] b = PRelu (a, s)
    [second] y = Conv <pads = [0,1,0,1]> (b, w2)
}"""
ODD = ("--factor", 5)
"""Folds nothing."""


@pytest.fixture(autouse=True)
def keeping_inf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Companions are exchanged whatever the runtime makes of an Inf."""
    monkeypatch.setattr(kernels, "prelu_keeps_inf", lambda: True)


def net() -> onnx.ModelProto:
    """The net with weights that are small integers."""
    proto = build(NET)
    rng = np.random.default_rng(0)
    for tensor in proto.graph.initializer:
        if tensor.name != "s":
            array = rng.integers(-4, 5, tuple(tensor.dims)).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return proto


def mirrored(tensor: onnx.TensorProto) -> None:
    array = np.flip(numpy_helper.to_array(tensor)).copy()
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save(net(), tmp_path / "model.onnx")


@pytest.fixture
def overridable(tmp_path: Path) -> Path:
    """The same with all weights among the inputs."""
    proto = net()
    for tensor in proto.graph.initializer:
        port = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        proto.graph.input.append(port)
    return save(proto, tmp_path / "overridable.onnx")


def operators(model: Path) -> list[str]:
    return [node.op_type for node in onnx.load(model).graph.node]


def same(first: Path, other: Path) -> bool:
    x = np.random.default_rng(0).integers(-9, 9, (1, 1, 4, 32)).astype(np.float32)
    return run(first, x)[0].tobytes() == run(other, x)[0].tobytes()


def test_a_fixed_factor_exchanges_what_is_asked_for(model: Path, tmp_path: Path) -> None:
    out, report = tmp_path / "out.onnx", tmp_path / "report.json"
    alone = widthfold("optimize", model, out, *ODD)
    assert "companion" not in alone.out
    assert out.read_bytes() == model.read_bytes()
    run_by_name = widthfold(
        "optimize", model, out, *ODD, "--companion", "prelu", "--report", report, "--seeds", 1
    )
    assert run_by_name.code == 0, run_by_name.err
    assert "companion prelu: 1 node became (Mul, Max)\n" in run_by_name.out
    assert "wrote out.onnx" in run_by_name.out
    assert "proof: equal" in run_by_name.out
    assert operators(out) == ["Conv", "Mul", "Max", "Conv"]
    assert same(model, out)
    content = json.loads(report.read_text())
    assert content["companions"] == [
        {
            "name": "prelu",
            "status": "exchanged",
            "nodes": ["act"],
            "replacements": ["Mul, Max"],
            "refused": [],
            "reason": "",
            "gain": None,
            "gain_on_smooth": None,
        }
    ]
    assert (content["summary"]["folded"], content["summary"]["exchanged"]) == (0, 1)
    folded = widthfold("optimize", model, out, "--factor", 8, "--companion", "prelu", "--seeds", 1)
    assert folded.code == 0, folded.err
    assert same(model, out)
    assert widthfold("verify", model, out, *QUICK).code == 0


def test_an_exchange_counts_as_a_change(model: Path, tmp_path: Path) -> None:
    more = (*ODD, "--companion", "prelu")
    checked = widthfold("optimize", model, "--check", *more)
    assert checked.code == 1
    assert ": 1 node would be exchanged" in checked.err
    required = ("optimize", model, tmp_path / "out.onnx", "--require-fold", "--seeds", 1)
    assert widthfold(*required, *more).code == 0
    assert widthfold(*required, *ODD, "--companion", "none").code == 5
    assert widthfold("optimize", model, *ODD, "--companion", "relu").code == 2


def test_where_nothing_is_measured_none_is_exchanged_unasked(model: Path) -> None:
    strides = ("optimize", model, "--form", "strides")
    assert "companion" not in widthfold(*strides).out
    assert "1 node became (Mul, Max)" in widthfold(*strides, "--companion", "prelu").out


def test_the_hook_counts_an_exchange(model: Path) -> None:
    done = CliRunner().invoke(
        precommit_command, [*map(str, ODD), "--companion", "prelu", str(model)]
    )
    assert done.exit_code == 1
    assert done.output.endswith("model.onnx': 1 node would be exchanged\n")


def test_one_is_no_plural(model: Path) -> None:
    check = ("--check", "--factor", 8, "--nodes", "first")
    assert "widthfold: 1 node would be folded" in widthfold("optimize", model, *check).err


def test_inspect_exchanges_behind_frozen_weights(overridable: Path) -> None:
    frozen = widthfold("inspect", overridable, "--freeze-weights", "--companion", "prelu").out
    assert "companion prelu: 1 node became (Mul, Max)" in frozen
    assert "1 node could become" in widthfold("inspect", overridable, "--freeze-weights").out


def test_a_refusal_is_told(tmp_path: Path) -> None:
    text = NET.replace("[act] b = PRelu (a, s)", "t = Identity (x) b = PRelu (a, t)")
    run = widthfold(
        *("optimize", save(build(text), tmp_path / "m.onnx"), *ODD),
        *("--companion", "prelu", "--details"),
    )
    message = "companion prelu: refused: PRelu PRelu -> b (not-constant: the slope t is"
    assert message in run.out


@pytest.mark.parametrize("form", ["markdown", "github", "json"])
def test_every_form_of_report_tells_it(model: Path, form: str) -> None:
    run = widthfold("optimize", model, *ODD, "--companion", "prelu", "--format", form)
    assert "prelu" in run.out
    assert "Mul, Max" in html.unescape(run.out)


@pytest.mark.parametrize("form", ["markdown", "github"])
def test_reports_tell_what_was_frozen(overridable: Path, form: str) -> None:
    run = widthfold("optimize", overridable, *ODD, "--freeze-weights", "--format", form)
    assert "3 weights taken out of the inputs" in html.unescape(run.out)


def test_inspect_lists_companions(model: Path) -> None:
    alone = widthfold("inspect", model).out
    assert "companion prelu: 1 node could become (Mul, Max); left alone unless" in alone
    assert "1 node became (Mul, Max)" in widthfold("inspect", model, "--companion", "prelu").out


def test_overridable_weights_are_frozen_on_request_alone(overridable: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    refused = widthfold("optimize", overridable, out, "--factor", 8)
    assert refused.out.count("--freeze-weights makes it a constant") == 2
    assert out.read_bytes() == overridable.read_bytes()
    for more, text in (((), "3 weights taken out"), (("--companion", "prelu"), "1 node became")):
        frozen = ("--factor", 8, "--freeze-weights", "--seeds", 1, *more)
        done = widthfold("optimize", overridable, out, *frozen)
        assert done.code == 0, done.err
        assert text in done.out
        assert "2 of 2 Conv nodes folded" in done.out
        assert "--freeze-weights" in done.out.splitlines()[-1]  # the command that times it
        assert same(overridable, out)
    assert [value.name for value in onnx.load(out).graph.input] == ["x"]
    inspected = widthfold("inspect", overridable).out
    assert "overridable: the slope s is an initializer that a caller may replace" in inspected
    assert inspected.count("--freeze-weights makes it a constant") == 2
    assert widthfold("inspect", overridable, "--freeze-weights").out.count("MACs,") == 2


def test_verify_accepts_frozen_weights_if_told(overridable: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    frozen = ("--factor", 8, "--freeze-weights", "--seeds", 1)
    assert widthfold("optimize", overridable, out, *frozen).code == 0
    untold = widthfold("verify", overridable, out, *QUICK)
    assert untold.code == 1
    assert "overridable initializer w1 is gone" in untold.err
    verification = widthfold("verify", overridable, out, *QUICK, "--freeze-weights")
    assert verification.code == 0, verification.err
    assert "proof: equal" in verification.out


def test_weights_of_an_old_file_are_frozen_together_and_otherwise_stay_unread(
    tmp_path: Path,
) -> None:
    old = net()
    old.ir_version, old.opset_import[0].version = 3, 8
    for tensor in old.graph.initializer:
        value = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        old.graph.input.append(value)
    source, out = save(old, tmp_path / "in.onnx"), tmp_path / "out.onnx"
    remark = "replaced weights that stay among the inputs, unread: 3; IR version 3"
    run = widthfold("optimize", source, out, "--factor", 8, "--seeds", 1)
    assert run.code == 0, run.err
    assert remark in run.out
    assert {value.name for value in onnx.load(out).graph.input} > {"x", "w1", "w2", "s"}
    run = widthfold("optimize", source, out, "--factor", 8, "--seeds", 1, "--freeze-weights")
    assert run.code == 0, run.err
    assert "3 weights taken out of the inputs" in run.out
    assert remark not in run.out
    frozen = onnx.load(out)
    onnx.checker.check_model(frozen, full_check=True)
    assert [value.name for value in frozen.graph.input] == ["x"]
    assert {"w1", "w2", "s"}.isdisjoint(tensor.name for tensor in frozen.graph.initializer)
    assert same(source, out)
    report = widthfold_onnx.optimize(old, factor=8).report
    assert [line.startswith(remark) for line in report.remarks] == [True]


def wrong_weight(graph: onnx.GraphProto) -> None:
    del graph.input[1:]
    mirrored(graph.initializer[0])


def weight_to_feed(graph: onnx.GraphProto) -> None:
    del graph.initializer[0]


def new_default(graph: onnx.GraphProto) -> None:
    del graph.input[1:]
    graph.initializer.add(name="x", data_type=1, dims=[1, 1, 4, 32], raw_data=bytes(512))


def renamed_output(graph: onnx.GraphProto) -> None:
    del graph.input[1:]
    graph.node[-1].output[0] = graph.output[0].name = "z"


def one_default_changed(graph: onnx.GraphProto) -> None:
    """One weight stays an input, with another default."""
    del graph.input[2:]
    mirrored(next(t for t in graph.initializer if t.name == graph.input[1].name))


@pytest.mark.parametrize(
    "fault", [wrong_weight, weight_to_feed, new_default, renamed_output, one_default_changed]
)
def test_verify_with_frozen_weights_finds_all_other_faults(
    overridable: Path, tmp_path: Path, fault
) -> None:
    proto = onnx.load(overridable)
    fault(proto.graph)
    out = save(proto, tmp_path / "out.onnx")
    assert widthfold("verify", overridable, out, *QUICK, "--freeze-weights").code == 1


def test_some_weights_may_stay_inputs(overridable: Path, tmp_path: Path) -> None:
    proto = onnx.load(overridable)
    del proto.graph.input[2:]
    out = save(proto, tmp_path / "out.onnx")
    assert widthfold("verify", overridable, out, *QUICK, "--freeze-weights").code == 0
