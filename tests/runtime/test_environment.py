"""The conditions of a figure; a fake answers for NVML, see `tests.runtime.fake_nvml`."""

import json
import sys
import threading
from importlib import metadata

import onnxruntime  # noqa: TID251 - it says its version itself
import pytest

from tests.runtime.fake_nvml import FakeNvml
from widthfold_onnx.options import Provider, VerifyOptions
from widthfold_onnx.results import GpuState
from widthfold_onnx.runtime import environment as environment_module
from widthfold_onnx.runtime.environment import (
    Device,
    StartReadings,
    environment,
    version,
    watched,
)
from widthfold_onnx.system import Processor

OPTIONS = VerifyOptions(provider=Provider.CPU)


@pytest.fixture
def machine(monkeypatch):
    facts = {"clock_mhz": 2500.3, "load_average": 1.234}
    for name in facts:
        monkeypatch.setattr(environment_module, name, lambda name=name: facts[name])
    monkeypatch.setattr(
        environment_module, "processor", lambda: Processor("Some CPU @ 2 GHz", "1", "AVX-512")
    )
    return facts


def test_a_change_during_the_work_shows(machine):
    before = StartReadings(load=machine["load_average"], mhz=machine["clock_mhz"])
    machine |= {"clock_mhz": 1500.3, "load_average": 3.006}
    facts = environment(OPTIONS, before)
    assert (facts.load_before, facts.load_after) == (1.23, 3.01)
    assert (facts.mhz_before, facts.mhz_after) == (2500.3, 1500.3)
    assert (facts.provider, facts.command) == ("cpu", "")
    assert facts.machine.endswith(" Some CPU @ 2 GHz")
    assert facts.vectors == "AVX-512"
    assert json.dumps(facts.machine).count("\\") == 0
    assert facts.widthfold == metadata.version("widthfold-onnx")


def test_a_missing_runtime_is_no_error(machine, monkeypatch):
    assert environment(OPTIONS, StartReadings()).onnxruntime == onnxruntime.__version__
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert environment(OPTIONS, StartReadings()).onnxruntime == ""


def test_a_missing_package_is_no_error():
    assert version("no-such-package") == ""
    assert version("no-such-package", "onnx") == metadata.version("onnx")


ON_GPU = VerifyOptions(provider=Provider.CUDA)


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(environment_module, "cudnn_version", lambda: (9, 14, 0))
    nvml = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return nvml


def test_facts_and_clocks_are_those_of_nvml(fake, monkeypatch):
    monkeypatch.setattr(environment_module, "version", lambda *names: "12.9.79")
    device = Device(ON_GPU)
    facts = device.facts()
    assert (facts.name, facts.driver, facts.driver_cuda) == ("Fake GPU", "580.65.06", "12.8")
    assert (facts.cuda, facts.cudnn, facts.missing) == ("12.9.79", "9.14.0", "")
    assert device.state() == GpuState(sm_mhz=1965, memory_mhz=3201, throttled=[])


@pytest.mark.parametrize(
    ("bits", "names"),
    [
        (0, []),
        (1 | 2, []),
        (4 | 1, ["SwPowerCap"]),
        (0x48 | 2, ["HwSlowdown", "HwThermalSlowdown"]),
        (1 << 40, []),
    ],
)
def test_idleness_and_chosen_clocks_are_no_throttling(fake, bits, names):
    fake.bits = bits
    assert Device(ON_GPU).state().throttled == names


def test_what_a_device_does_not_tell_is_none(fake):
    fake.lacks = ("driver", "cuda", "name", "clock", "reasons")
    device = Device(ON_GPU)
    assert device.state() == GpuState()
    facts = device.facts()
    assert (facts.name, facts.driver, facts.driver_cuda, facts.missing) == ("", "", "", "")


@pytest.mark.parametrize(
    ("visible", "number", "index"),
    [
        ("", "0", 0),
        ("", "3", 3),
        ("2,5", "1", 5),
        ("5, GPU-8932f937-d72c", "1", "GPU-8932f937-d72c"),
        ("2", "1", 1),
    ],
)
def test_the_device_is_that_of_cuda(fake, monkeypatch, visible, number, index):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    options = VerifyOptions(provider=Provider.TENSORRT, provider_options={"device_id": number})
    assert Device(options).answers
    assert fake.indices == [index]


def test_without_nvml_one_reason_is_left(fake, monkeypatch):
    fake.initial = "Driver Not Loaded\x1b"
    device = Device(ON_GPU)
    assert not device.answers
    assert device.facts().missing == r"NVML does not answer: Driver Not Loaded\x1b"
    monkeypatch.setitem(sys.modules, "pynvml", None)  # what Python does where it is not installed
    assert Device(ON_GPU).facts().missing.startswith("nvidia-ml-py is missing: pip install")
    with watched(ON_GPU) as states:
        pass
    assert states == []


def test_on_the_cpu_nothing_is_asked(fake):
    fake.initial = "asked"
    with watched(VerifyOptions(provider=Provider.CPU)) as states:
        pass
    assert states == []
    assert Device(VerifyOptions(provider=Provider.CPU)).missing == ""


def test_a_throttling_between_begin_and_end_is_seen(fake, monkeypatch):
    monkeypatch.setattr(environment_module, "PERIOD", 0.001)
    reasons, looked = fake.nvmlDeviceGetCurrentClocksThrottleReasons, threading.Event()

    def ask(handle):
        if threading.current_thread() is threading.main_thread():
            return reasons(handle)
        looked.set()
        return 8

    fake.nvmlDeviceGetCurrentClocksThrottleReasons = ask
    with watched(ON_GPU) as states:
        assert looked.wait(20)
    assert (states[0].throttled, states[-1].throttled) == ([], [])
    assert ["HwSlowdown"] in [state.throttled for state in states]


def test_what_happens_in_the_block_ends_the_watch(fake):
    before = threading.active_count()
    with pytest.raises(KeyError), watched(ON_GPU):
        assert threading.active_count() == before + 1
        raise KeyError
    assert threading.active_count() == before
