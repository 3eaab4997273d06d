"""Questions to the system and the processor, and the answers where they do not say."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import archspec.cpu
import archspec.cpu.detect
import psutil
import pytest

from tests.flags.processors import CHOSEN, FLAGS, told
from widthfold_onnx import system


def test_the_processor_is_that_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    status = dict(line.split(":", 1) for line in lines if ":" in line)
    fields = {name.strip(): value.strip() for name, value in status.items()}
    if "cpu family" not in fields:
        pytest.skip("the system does not list family, model and stepping")
    seen = system.processor()
    assert seen.name == " ".join(fields["model name"].split())
    flags = {*fields["flags"].split()} if CHOSEN is None else FLAGS[CHOSEN]
    assert seen.has_avx512 == ("avx512f" in flags)
    assert ("VNNI" in seen.vectors) == any("vnni" in flag for flag in flags)
    assert seen.vectors.startswith("AVX") == bool({"avx", "avx512f"} & flags)
    code = int(seen.signature, 16)
    family, model = code >> 8 & 15, code >> 4 & 15
    model += (code >> 16 & 15) << 4 if family in (6, 15) else 0
    family += code >> 20 & 255 if family == 15 else 0
    assert [family, model, code & 15] == [
        int(fields[name]) for name in ("cpu family", "model", "stepping")
    ]


@pytest.mark.parametrize(
    ("name", "vectors"),
    [
        ("zen4", "AVX-512 VNNI"),
        ("zen4-without-one", "AVX-512 VNNI"),
        ("cascadelake", "AVX-512 VNNI"),
        ("skylake_avx512", "AVX-512"),
        ("haswell", "AVX2"),
        ("alder-lake", "AVX2 VNNI"),
        ("sandybridge", "AVX"),
        ("nehalem", ""),
        ("graviton", "NEON"),
        ("graviton3", "NEON with dot products"),
        ("unknown", "AVX-512 VNNI"),
        ("none", ""),
    ],
)
def test_the_flags_count_and_not_the_best_match(
    name: str, vectors: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    generic = archspec.cpu.TARGETS["x86_64"]
    monkeypatch.setattr(archspec.cpu, "host", lambda: generic)
    monkeypatch.setattr(archspec.cpu.detect, "detected_info", lambda: told(FLAGS[name]))
    processor = system.processor.__wrapped__()
    assert processor.vectors == vectors
    assert processor.has_avx512 == (processor.vectors[:7] == "AVX-512")


@pytest.mark.parametrize("error", [SystemError("no x86"), OSError("no memory for code")])
def test_a_processor_without_cpuid_is_named_by_its_microarchitecture(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    host = archspec.cpu.TARGETS["neoverse_v1"]
    monkeypatch.setattr(archspec.cpu, "host", lambda: host)
    # As on systems of ARM that name the processor and list no flags.
    monkeypatch.setattr(archspec.cpu.detect, "detected_info", lambda: told(frozenset()))
    monkeypatch.setattr(archspec.cpu, "brand_string", lambda: None)
    monkeypatch.setattr(archspec.cpu.detect, "CpuidInfoCollector", fail)
    processor = system.processor.__wrapped__()
    assert processor == ("neoverse_v1", "neoverse_v1", "NEON with dot products")
    assert not processor.has_avx512


def test_only_cores_that_the_process_may_use_count(monkeypatch: pytest.MonkeyPatch) -> None:
    process = SimpleNamespace(cpu_affinity=lambda: [3, 5, 7])
    monkeypatch.setattr(psutil, "Process", lambda: process)
    assert system.cores() == 3
    del process.cpu_affinity  # macOS has none
    monkeypatch.setattr(psutil, "cpu_count", lambda: 6)
    assert system.cores() == 6
    monkeypatch.setattr(psutil, "cpu_count", lambda: None)
    assert system.cores() == 1


def test_the_clock_is_none_where_the_system_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_freq", lambda: SimpleNamespace(current=2500.28))
    assert system.clock_mhz() == 2500.3
    monkeypatch.setattr(psutil, "cpu_freq", lambda: None)
    assert system.clock_mhz() is None
    monkeypatch.delattr(psutil, "cpu_freq")
    assert system.clock_mhz() is None


def test_the_load_is_that_of_the_last_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "getloadavg", lambda: (1.234, 7.0, 8.0))
    assert system.load_average() == 1.234


def test_the_last_cache_is_the_largest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cache(name: str, size: str) -> None:
        (tmp_path / name).mkdir()
        (tmp_path / name / "size").write_text(size)

    monkeypatch.setattr(system, "_CACHES", tmp_path)
    assert system.last_cache_bytes() == 32 << 20
    for name, size in (("index0", "48K\n"), ("index3", "33792K\n"), ("index2", "2048K")):
        cache(name, size)
    assert system.last_cache_bytes() == 33792 << 10
    for name, size in (("index4", "unknown"), ("index5", "9999999"), ("index6", "K")):
        cache(name, size)
    assert system.last_cache_bytes() == 33792 << 10


@pytest.mark.parametrize(("tick", "is_fine"), [(41, True), (15_625_000, False)])
def test_the_step_of_the_thread_clock_is_seen(
    tick: int, is_fine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = itertools.count()
    monkeypatch.setattr(time, "thread_time_ns", lambda: next(calls) // 10 * tick)
    assert system.has_fine_thread_clock.__wrapped__() == is_fine


def test_memory_is_not_limited_where_the_system_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("current limit exceeds maximum limit")  # as on macOS

    refusing = SimpleNamespace(
        RLIMIT_AS=9, RLIM_INFINITY=-1, setrlimit=refuse, getrlimit=lambda _: (-1, -1)
    )
    for module in (refusing, None):
        monkeypatch.setattr(system, "resource", module)
        with system.memory_limit(1 << 40) as is_limited:
            assert not is_limited


def test_memory_is_limited_for_a_while() -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_AS)
    with system.memory_at_most(1 << 30), pytest.raises(MemoryError):
        bytearray(1 << 31)
    assert resource.getrlimit(resource.RLIMIT_AS) == before


FAMILY = """
import subprocess, sys, time
code = "import time; print('here', flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(600)
"""


def test_a_process_ends_with_all_that_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    wait, waited = psutil.wait_procs, []

    def look(processes: list[psutil.Process], timeout: float) -> None:
        waited.append(processes)
        wait(processes, timeout)

    monkeypatch.setattr(psutil, "wait_procs", look)
    command = [sys.executable, "-c", FAMILY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, **system.OWN_GROUP) as parent:
        assert parent.stdout is not None
        grandchild = psutil.Process(int(parent.stdout.readline()))
        system.end_tree(parent.pid)
        parent.wait(60)
    assert waited == [[grandchild]]
    assert wait([grandchild], timeout=60) == ([grandchild], [])
    system.end_tree(parent.pid)  # it is gone already


@pytest.mark.parametrize("has_kill", [True, False])
def test_a_thread_is_interrupted(has_kill: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    if not has_kill:
        monkeypatch.delattr(signal, "pthread_kill", raising=False)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            threading.Timer(0.1, system.interrupt, (threading.main_thread().ident,)).start()
            for _ in range(600):
                time.sleep(0.1)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_folder_is_synced_where_that_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    system.sync_folder(tmp_path)
    assert len(synced) == hasattr(os, "O_DIRECTORY")
    monkeypatch.delattr(os, "O_DIRECTORY", raising=False)
    system.sync_folder(tmp_path)
    assert len(synced) <= 1
