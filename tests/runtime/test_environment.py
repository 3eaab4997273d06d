import json
from importlib import metadata

import pytest

from widthfold_onnx.options import Provider, VerifyOptions
from widthfold_onnx.runtime import environment as environment_module
from widthfold_onnx.runtime.environment import Before, environment
from widthfold_onnx.system import Processor

OPTIONS = VerifyOptions(provider=Provider.CPU)


@pytest.fixture
def machine(monkeypatch):
    facts = {"clock_mhz": 2500.3, "load_average": 1.234}
    for name in facts:
        monkeypatch.setattr(environment_module, name, lambda name=name: facts[name])
    monkeypatch.setattr(
        environment_module, "processor", lambda: Processor("Some CPU @ 2 GHz", "1", True)
    )
    return facts


def test_a_change_during_the_work_shows(machine):
    before = Before(load=machine["load_average"], mhz=machine["clock_mhz"])
    machine |= {"clock_mhz": 1500.3, "load_average": 3.006}
    facts = environment(OPTIONS, before)
    assert (facts.load_before, facts.load_after) == (1.23, 3.01)
    assert (facts.mhz_before, facts.mhz_after) == (2500.3, 1500.3)
    assert (facts.provider, facts.command) == ("cpu", "")
    assert facts.machine.endswith(" Some CPU @ 2 GHz")
    assert json.dumps(facts.machine).count("\\") == 0
    assert facts.widthfold == metadata.version("widthfold-onnx")


@pytest.mark.parametrize(
    ("installed", "version"),
    [
        ({"onnxruntime": "1.31.1"}, "1.31.1"),
        ({"onnxruntime-gpu": "1.32.0"}, "1.32.0"),
        ({}, ""),
    ],
)
def test_either_runtime_is_named_and_none_is_no_error(machine, monkeypatch, installed, version):
    def find(name):
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(metadata, "version", find)
    facts = environment(OPTIONS, Before())
    assert (facts.onnxruntime, facts.widthfold) == (version, "")
