"""Models written channel by channel as a user meets them: proved, tampered with, interrupted."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.cli.test_optimize_interrupted import wait_for
from tests.cli.test_verify_faults import limited
from tests.cli.tool import QUICK, start_process, verify_report, widthfold
from tests.plan.world import World, enter
from tests.rewrite.channels import builder, by_channel, drop_key
from widthfold_onnx import AxisName, FoldOptions, Provider, fold_model, optimize
from widthfold_onnx.options import SearchOptions
from widthfold_onnx.plan.store import Store
from widthfold_onnx.rewrite.record import CHANNEL_KEY, FOLD_KEY

FOLDED = "conv0/channel_1_of_2"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A Conv, and what `optimize` writes where it is faster channel by channel."""
    folder = tmp_path_factory.mktemp("pair")
    model, out = folder / "model.onnx", folder / "out.onnx"
    g = builder(8, 3, 5, 7)
    proto = g.model([g.op("Relu", g.conv("x", 2, [3, 3]))])
    onnx.save(proto, model)
    onnx.save(fold_model(by_channel(proto), FoldOptions(factor=8, axis=AxisName.BATCH))[0], out)
    return model, out


def test_verify_proves_the_convs_and_their_channels(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    run = widthfold("verify", *pair, *QUICK, "--report", report)
    assert (run.code, run.err) == (0, "")
    document = verify_report(report)
    assert document["proof"]["verdict"] == "equal"
    assert document["integers"]["verdict"] == "exact"
    assert document["integers"]["nodes"] >= 6


def node_of(model: onnx.ModelProto) -> onnx.NodeProto:
    return next(node for node in model.graph.node if node.name == FOLDED)


def one_ulp(model: onnx.ModelProto) -> None:
    name = node_of(model).input[1]
    tensor = next(t for t in model.graph.initializer if t.name == name)
    array = numpy_helper.to_array(tensor).copy()
    array.flat[4] = np.nextafter(array.flat[4], np.float32(9))
    tensor.CopyFrom(numpy_helper.from_array(array, name))


def lost_keys(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        drop_key(node, CHANNEL_KEY)


def lost_record(model: onnx.ModelProto) -> None:
    drop_key(node_of(model), FOLD_KEY)


@pytest.mark.parametrize(("tamper", "code"), [(one_ulp, 1), (lost_keys, 0), (lost_record, 0)])
def test_a_changed_weight_fails_and_a_lost_record_does_not(
    pair: tuple[Path, Path],
    tamper: Callable[[onnx.ModelProto], None],
    code: int,
    tmp_path: Path,
) -> None:
    proto, path = onnx.load(pair[1]), tmp_path / "tampered.onnx"
    tamper(proto)
    onnx.save(proto, path)
    run = widthfold("verify", pair[0], path, *QUICK)
    assert run.code == code, run
    assert ("proof: different" in run.out) == bool(code)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[" * 100_000,
        '{"of": 1, "channel": 0}',
        '{"of": "v0", "channel": 1e99}',
        {"of": "v0", "channel": -1},
        {"of": "", "channel": 1 << 62},
        {"of": "x", "channel": 1},
        {"of": "v1", "channel": None},
        {"of": "\x1b[2J\n" * 1000, "channel": 1},
    ],
)
def test_a_hostile_key_is_no_fault_of_ours(
    pair: tuple[Path, Path],
    text: str | dict[str, object],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    proto, path = onnx.load(pair[1]), tmp_path / "hostile.onnx"
    for node in proto.graph.node:
        for entry in node.metadata_props:
            if entry.key == CHANNEL_KEY:
                entry.value = text if isinstance(text, str) else json.dumps(text)
    onnx.save(proto, path)
    with limited(60):
        run = widthfold("verify", pair[0], path, *QUICK)
    assert (run.code, run.err) == (0, "")
    assert "\x1b" not in run.out + run.err
    assert capfd.readouterr() == ("", "")
    run = widthfold("inspect", path)
    assert run.code == 0
    assert "\x1b" not in run.out + run.err


def known(store: Path) -> int:
    """How many measurements of layers of one channel a store holds."""
    with Store(store) as opened:
        return sum('"weight":[1,1,' in key.subject for key, _ in opened.items())


def test_ctrl_c_while_the_rival_is_measured_decides_with_what_is_known(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    """The model as it is was measured before, and nothing of it pays."""

    def alone(layer, form):
        if layer["weight"][:2] == [1, 1]:
            raise KeyboardInterrupt
        return (0.5, 0.4)

    store, out = tmp_path / "store.sqlite", tmp_path / "out.onnx"
    with pytest.MonkeyPatch.context() as patch:
        enter(patch, World(alone, {}))
        options = SearchOptions(provider=Provider.CPU, store=store)
        assert optimize(pair[0], None, FoldOptions(), None, options).search.interrupted
    before = known(store)
    child = start_process(
        *("optimize", pair[0], out, "--provider", "cpu", "--store", store, "--seeds", 1),
        start_new_session=True,
    )
    try:
        wait_for(lambda: known(store) > before or child.poll() is not None)
        assert child.poll() is None
        os.killpg(child.pid, signal.SIGINT)
        said, error = child.communicate(timeout=60)
    finally:
        child.kill()
        child.communicate()
    assert child.returncode == 130
    assert error == b"widthfold: interrupted; decided with what had been measured\n"
    assert b"ended early" in said
    assert out.exists()
