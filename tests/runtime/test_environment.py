import json
import os
from importlib import metadata

import pytest

from widthfold_onnx.options import Provider, VerifyOptions
from widthfold_onnx.runtime import environment as environment_module
from widthfold_onnx.runtime.environment import (
    Before,
    clock_mhz,
    cores,
    environment,
    last_cache_bytes,
    load_average,
)

OPTIONS = VerifyOptions(provider=Provider.CPU)

CPU_INFO = """processor\t: 0
cpu MHz limit\t: 9999
model name\t: Some CPU @ 2 GHz
cpu MHz\t\t: 2000.5
processor\t: 1
model name\t: Some CPU @ 2 GHz
cpu MHz\t\t: 3000.1
"""


@pytest.fixture
def machine(monkeypatch, tmp_path):
    info, caches = tmp_path / "cpuinfo", tmp_path / "cache"
    info.write_text(CPU_INFO)
    caches.mkdir()
    monkeypatch.setattr(environment_module, "_CPU_INFO", info)
    monkeypatch.setattr(environment_module, "_CACHES", caches)
    monkeypatch.setattr(os, "getloadavg", lambda: (1.234, 7.0, 8.0))
    return tmp_path


def test_the_clock_is_the_mean_of_the_cores(machine):
    assert clock_mhz() == 2500.3
    (machine / "cpuinfo").write_text("processor : 0\n")
    assert clock_mhz() is None
    (machine / "cpuinfo").unlink()
    assert clock_mhz() is None


def cache(machine, **sizes):
    for name, text in sizes.items():
        folder = machine / "cache" / name
        folder.mkdir()
        (folder / "size").write_text(text)


def test_the_last_cache_is_the_largest(machine):
    assert last_cache_bytes() == 32 << 20
    cache(machine, index0="48K\n", index3="33792K\n", index2="2048K")
    assert last_cache_bytes() == 33792 << 10
    cache(machine, index4="unknown", index5="9999999", index6="K")
    assert last_cache_bytes() == 33792 << 10


def test_the_load_is_that_of_the_last_minute(machine, monkeypatch):
    assert load_average() == 1.234
    monkeypatch.delattr(os, "getloadavg")
    assert load_average() == 0.0


def test_only_cores_that_the_process_may_use_count(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 7}, raising=False)
    assert cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert cores() == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cores() == 1


def test_a_change_during_the_work_shows(machine, monkeypatch):
    before = Before()
    (machine / "cpuinfo").write_text(CPU_INFO.replace("3000.1", "1000.1"))
    monkeypatch.setattr(os, "getloadavg", lambda: (3.006, 0.0, 0.0))
    found = environment(OPTIONS, before)
    assert (found.load_before, found.load_after) == (1.23, 3.01)
    assert (found.mhz_before, found.mhz_after) == (2500.3, 1500.3)
    assert (found.provider, found.command) == ("cpu", "")
    assert found.machine.endswith(" Some CPU @ 2 GHz")
    assert json.dumps(found.machine).count("\\") == 0
    assert found.widthfold == metadata.version("widthfold-onnx")


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
    found = environment(OPTIONS, Before())
    assert (found.onnxruntime, found.widthfold) == (version, "")
