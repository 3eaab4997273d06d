"""Two models that are timed on a machine of our own."""

import math
from types import SimpleNamespace

import pytest

from tests.evidence.timing.machine import NODES, Limits, Machine, unread
from widthfold_onnx.evidence.timing import speed
from widthfold_onnx.evidence.timing.speed import time_models
from widthfold_onnx.options import Provider, VerifyOptions
from widthfold_onnx.runtime import clock, contest, settings
from widthfold_onnx.runtime.inputs import input_sets


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """A function that times two models on a fake machine, and returns result and machine."""
    models = unread(tmp_path / "a.onnx"), unread(tmp_path / "b.onnx")
    for model, size in zip(models, (5, 6), strict=True):
        model.path.write_bytes(bytes(size))

    def measure(
        costs,
        *,
        provider=Provider.CPU,
        load=0.0,
        before=math.inf,
        cores=2,
        same_file=False,
        first=None,
        cache=0,
        **options,
    ):
        machine = Machine(costs, first)
        fakes = {
            "open_session": machine.open_session,
            "time": SimpleNamespace(perf_counter=machine.seconds),
            "clock_of": lambda *rest: lambda: machine.now,
            "isolated": lambda function, *arguments: function(*arguments),
            "profile": lambda open_with, feeds, least: NODES,
            "Roofline": Limits,
            "resolved": lambda options: options,
            "load_average": lambda: load,
            "cores": lambda: cores,
        }
        for name, fake in fakes.items():
            for module in (clock, settings, contest, speed):
                if hasattr(module, name):
                    monkeypatch.setattr(module, name, fake)
        monkeypatch.setattr(input_sets, "last_cache_bytes", lambda: cache)
        pair = (models[0], models[0]) if same_file else models
        options = VerifyOptions(provider=provider, **options)
        return time_models(*pair, options, ({"x": (1, 256)},), load=before), machine

    return measure
