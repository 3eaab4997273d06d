import json
import sys
from importlib import metadata

import onnxruntime  # noqa: TID251 - it says its version itself
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


def test_the_runtime_is_named_whatever_package_installed_it(machine, monkeypatch, tmp_path):
    assert environment(OPTIONS, Before()).onnxruntime == onnxruntime.__version__
    module = tmp_path / "onnxruntime.py"
    module.write_text('"""of onnxruntime-directml 1.24.1.post2"""\n__version__ = "1.24.1"\n')
    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert environment(OPTIONS, Before()).onnxruntime == "1.24.1"


def test_a_missing_runtime_is_no_error(machine, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert environment(OPTIONS, Before()).onnxruntime == ""


def test_a_missing_package_is_no_error(machine, monkeypatch):
    def find(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", find)
    assert environment(OPTIONS, Before()).widthfold == ""
