"""Strings that identify machines and settings in the store."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

from widthfold_onnx.errors import InternalError
from widthfold_onnx.options import Provider, RuntimeOptions
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.system import Processor
from widthfold_onnx.tuning import identity
from widthfold_onnx.tuning.identity import canonical, machine_identity, setting_identity

PROVIDERS = [Provider.CPU, Provider.CUDA, Provider.TENSORRT]


SLOW = '(sleep 60; touch "$0.waited"); exit 9'
"""A process of the tool's own keeps the pipe open, and leaves a mark if somebody waits for it."""


@pytest.fixture(autouse=True)
def forget() -> None:
    machine_identity.cache_clear()


def tool(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Put a tool in the place of nvidia-smi."""
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def again(provider: Provider) -> dict:
    machine_identity.cache_clear()
    return json.loads(machine_identity(provider))


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_same_machine_is_the_same_string(provider: Provider) -> None:
    first = machine_identity(provider)
    assert first == canonical(json.loads(first))
    machine_identity.cache_clear()
    assert machine_identity(provider) == first
    script = (
        "from widthfold_onnx.tuning.identity import *\n"
        f"print(machine_identity(Provider('{provider}')))"
    )
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert other.stdout.decode().strip() == first


def test_every_fact_of_the_machine_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = [again(Provider.CPU)]
    for name, changed in (
        ("machine", lambda: "Other"),
        ("cores", lambda: 99),
        ("processor", lambda: Processor("", "other", "")),
        ("processor", lambda: Processor("", "other", "AVX2")),
        ("runtime_version", lambda: "0.0"),
        ("u8s8_error", lambda: 7),
        ("version", lambda *names: f"0 {names[0]}"),
    ):
        monkeypatch.setattr(identity, name, changed)
        seen.append(again(Provider.CPU))
    assert len({canonical(item) for item in seen}) == len(seen)
    assert (seen[-1]["onnx"], seen[-1]["widthfold"]) == ("0 onnx", "0 widthfold-onnx")
    of_machine = {"cpu", "stepping", "vectors", "cores", "u8s8"}
    assert set(seen[0]) == {*of_machine, "onnxruntime", "onnx", "widthfold"}


def test_the_cpu_asks_for_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tmp_path, monkeypatch, f"touch {tmp_path}/asked")
    machine_identity(Provider.CPU)
    assert not (tmp_path / "asked").exists()
    machine_identity(Provider.CUDA)
    assert (tmp_path / "asked").exists()


def test_device_and_driver_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for line in ("Device A, 1.0", "Device A, 2.0", "Device B, 1.0"):
        tool(tmp_path, monkeypatch, f"echo '{line}'; echo '{line}'")
        assert again(Provider.CUDA)["gpu"] == [line]
        seen += [machine_identity(Provider.CUDA), machine_identity(Provider.TENSORRT)]
    assert len(set(seen)) == 6


def test_devices_of_several_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tmp_path, monkeypatch, "echo 'B, 1'; echo 'A, 1'")
    for visible in ("0", "1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        again_identity = again(Provider.CUDA)
        assert (again_identity["gpu"], again_identity["visible"]) == (["A, 1", "B, 1"], visible)
    tool(tmp_path, monkeypatch, "echo 'A, 1'; echo 'A, 1'")
    assert again(Provider.CUDA)["visible"] == ""


@pytest.mark.parametrize("body", ["echo broken; exit 9", SLOW, "kill -9 $$", "printf '\\n'"])
def test_a_query_that_fails_names_no_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    monkeypatch.setattr(identity, "_SECONDS", 0.5)
    tool(tmp_path, monkeypatch, body)
    assert again(Provider.CUDA)["gpu"] == []
    assert not (tmp_path / "nvidia-smi.waited").exists()


def test_no_tool_at_all_and_a_tool_that_writes_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool(tmp_path, monkeypatch, "printf '\\377\\033[2J, 1\\n'")
    assert machine_identity(Provider.CUDA).isprintable()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert again(Provider.CUDA)["gpu"] == []


def test_every_argument_of_a_setting_counts() -> None:
    base = {
        "provider": Provider.CUDA,
        "provider_options": {"a": "1"},
        "session_options": {"a": "1"},
        "threads": 1,
    }
    changes = {
        "provider": Provider.CPU,
        "provider_options": {"a": "2"},
        "session_options": {"a": "2"},
        "threads": 2,
    }
    # no layer reads them
    of_inputs = {"inputs", "values", "cases", "index_limits", "weight_extents"}
    names = [field.name for field in fields(RuntimeOptions)]
    assert [name for name in names if name not in of_inputs] == list(changes)
    assert list(inspect.signature(setting_identity).parameters) == ["options", "level"]
    ways = [base | {name: value} for name, value in changes.items()]
    ways += [base, base | {"provider_options": {"b": "1"}}]
    texts = {setting_identity(RuntimeOptions(**way), Level.ALL) for way in ways}
    texts.add(setting_identity(RuntimeOptions(**base), Level.EXTENDED))
    assert len(texts) == 7


def test_the_order_of_options_does_not_count() -> None:
    options, entries = {"prefer_nhwc": "1", "device_id": "0"}, {"s.b": "1", "s.a": "2"}
    runtime_options = RuntimeOptions(
        provider=Provider.CUDA, provider_options=options, session_options=entries
    )
    first = setting_identity(runtime_options, Level.ALL)
    turned = {
        "provider_options": dict(reversed(options.items())),
        "session_options": dict(reversed(entries.items())),
    }
    assert setting_identity(replace(runtime_options, **turned), Level.ALL) == first
    assert first == (
        '{"level":"all","options":{"device_id":"0","prefer_nhwc":"1"},'
        '"provider":"cuda","session":{"s.a":"2","s.b":"1"},"threads":1}'
    )


def test_a_provider_that_is_not_chosen_is_our_fault() -> None:
    with pytest.raises(InternalError):
        machine_identity(Provider.AUTO)
    with pytest.raises(InternalError):
        setting_identity(RuntimeOptions(), Level.ALL)


def test_canonical_is_one_text() -> None:
    assert canonical({"b": (1, 2.5), "a": {"y": None, "x": "é\n"}}) == (
        '{"a":{"x":"\\u00e9\\n","y":null},"b":[1,2.5]}'
    )
    with pytest.raises(ValueError, match="JSON"):
        canonical(float("nan"))
