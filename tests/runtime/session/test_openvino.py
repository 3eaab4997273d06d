"""OpenVINO runs models for real; scripts/nightly makes the environment in which these run."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import onnxruntime  # noqa: TID251 - the runtime itself lists its providers
import pytest

from tests.cli.tool import widthfold
from tests.folding import optimize, verify
from tests.small_models import MODELS
from widthfold_onnx.errors import UsageError
from widthfold_onnx.options import (
    Effort,
    FoldOptions,
    Provider,
    RuntimeOptions,
    SearchOptions,
    VerifyOptions,
)
from widthfold_onnx.runtime.provider_traits import traits_of
from widthfold_onnx.runtime.session import open_session, resolved
from widthfold_onnx.tuning.store import Store

NAME = traits_of(Provider.OPENVINO).name

pytestmark = [
    pytest.mark.needs_openvino,
    pytest.mark.skipif(
        NAME not in onnxruntime.get_available_providers(),
        reason="OpenVINO is NOT tested: this runtime has none; scripts/nightly makes an "
        "environment with the extra openvino",
    ),
]


@pytest.mark.parametrize("name", ["pitch_cnn", "chain"])
def test_models_are_folded_and_verified_there(name: str, tmp_path: Path) -> None:
    model, out = MODELS / f"{name}.onnx", tmp_path / "out.onnx"
    there = VerifyOptions(provider=Provider.OPENVINO, time_budget=1)
    report = optimize(model, out, FoldOptions(factor=8), there)
    assert report.summary.folded
    verification = verify(model, out, there)
    assert verification.verdict == "pass", verification.reasons
    assert verification.timing is not None
    assert (verification.timing.provider, verification.timing.clock) == ("openvino", "thread")
    for side in (verification.timing.original, verification.timing.rewritten):
        assert side.fallbacks == []
        assert set(side.providers) == {NAME}


def test_layers_are_measured_there(tmp_path: Path) -> None:
    """Without `Bound` keeping its inputs the runtime crashes here."""
    model, out = MODELS / "pitch_cnn.onnx", tmp_path / "out.onnx"
    there = SearchOptions(provider=Provider.OPENVINO, effort=Effort.QUICK)
    report = optimize(model, out, FoldOptions(), None, there)
    assert report.search is not None
    assert report.search.provider == "openvino"
    assert report.search.measured > 4


def test_the_tool_stores_what_it_measured(tmp_path: Path) -> None:
    store = tmp_path / "measured.store"
    words = ("--provider", NAME, "--store", store)
    run = widthfold("tune", MODELS / "chain.onnx", "--effort", "quick", *words)
    assert run.code == 0, run
    with Store(store) as opened:
        settings = {key.setting for key, _ in opened.items()}
    assert settings
    assert all("openvino" in setting for setting in settings)


@pytest.mark.parametrize(
    ("option", "value"),
    [("precision", "FP99"), ("device_type", "XYZ"), ("nonsense", "1"), ("num_of_threads", "x")],
)
def test_what_it_would_silently_leave_to_the_cpu_is_refused(option: str, value: str) -> None:
    expected = VerifyOptions(provider=Provider.OPENVINO, provider_options={option: value})
    with pytest.raises(UsageError, match=f"openvino does not run with {option}={value}: "):
        resolved(expected)


def test_the_inputs_of_a_binding_stay() -> None:
    session = open_session(MODELS / "paper_conv.onnx", RuntimeOptions(provider=Provider.OPENVINO))
    shape = [dim if isinstance(dim, int) else 1 for dim in session.inputs[0].dims]
    array = np.ones(shape, np.float32)
    alive, once = weakref.ref(array), session.bound({session.inputs[0].name: array})
    del array
    gc.collect()
    assert alive() is not None
    once()
