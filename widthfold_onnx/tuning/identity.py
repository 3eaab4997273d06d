"""Describe what a time depends on besides the model, as strings for the keys of the store."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from functools import cache
from typing import NamedTuple

from widthfold_onnx.errors import InternalError
from widthfold_onnx.options import Provider, RuntimeOptions
from widthfold_onnx.runtime.environment import machine, version
from widthfold_onnx.runtime.kernels import u8s8_error
from widthfold_onnx.runtime.library import runtime_version
from widthfold_onnx.runtime.provider_traits import Level, traits_of
from widthfold_onnx.runtime.session import resolved
from widthfold_onnx.system import cores, processor

_QUERY = ("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
_SECONDS = 20


def canonical(value: object) -> str:
    r"""Return the canonical JSON text of a value: sorted names, no spaces, ASCII.

    Raises:
        ValueError: a number that is not finite.

    >>> canonical({"b": [1, 2], "a": "é"})
    '{"a":"\\u00e9","b":[1,2]}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


class Place(NamedTuple):
    """The provider and the machine that a measurement is taken with."""

    provider: Provider
    machine: str


def find_place(options: RuntimeOptions) -> Place:
    """Return the provider and the machine that this process would measure with.

    Run it in `runtime.child.isolated`, since a provider may keep memory of its device.

    Raises:
        UnverifiedError: the provider cannot be used.
        UsageError: it or the runtime does not take the options.
    """
    provider = resolved(options).provider
    return Place(provider, machine_identity(provider))


@cache
def machine_identity(provider: Provider) -> str:
    """Return the machine and the versions that decide how fast a model runs; computed once.

    If there are several kinds of GPUs, the devices that CUDA may see are part of it.

    Args:
        provider: where the models run; not AUTO, whose meaning may change.

    Raises:
        InternalError: the provider is AUTO.
        UnverifiedError: ONNX Runtime is not installed.
    """
    _check_chosen(provider)
    facts: dict[str, object] = {
        "cpu": machine(),
        "stepping": processor().signature,
        "vectors": processor().vectors,
        "cores": cores(),
        "onnxruntime": runtime_version(),
        "u8s8": u8s8_error(),
        "onnx": version("onnx"),
        "widthfold": version("widthfold-onnx"),
    }
    traits = traits_of(provider)
    if traits.device == "nvidia":
        kinds = _gpus()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "") if len(kinds) > 1 else ""
        facts |= {"gpu": kinds, "visible": visible}
    if traits.device == "other":
        facts["host"] = platform.node()  # nothing tells its kind
    facts |= {name: version(*packages) for name, packages in traits.packages.items()}
    return canonical(facts)


def runtime_of(machine: str) -> str:
    """Return the version of ONNX Runtime that a machine identity names."""
    return str(json.loads(machine)["onnxruntime"])


def device_name(provider: Provider) -> str:
    """Return the name of the processor, or of the GPUs, that a provider runs on."""
    kinds = _gpus() if traits_of(provider).device == "nvidia" else []
    return ", ".join(kinds) or machine()


def setting_identity(options: RuntimeOptions, level: Level) -> str:
    """Return the settings with which the runtime runs a model.

    Args:
        options: its provider is not AUTO.
        level: the runtime's own optimization level.

    Raises:
        InternalError: the provider is AUTO.
    """
    _check_chosen(options.provider)
    return canonical(
        {
            "provider": options.provider,
            "options": dict(options.provider_options),
            "session": dict(options.session_options),
            "level": level,
            "threads": options.threads,
        }
    )


def _check_chosen(provider: Provider) -> None:
    if provider is Provider.AUTO:
        raise InternalError("the provider of a measurement is not chosen yet")


def _gpus() -> list[str]:
    """Return the kinds of GPUs with their driver; none where nvidia-smi does not answer."""
    quiet = subprocess.DEVNULL
    try:
        answer = subprocess.check_output(_QUERY, stdin=quiet, stderr=quiet, timeout=_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return []
    lines = answer.decode(errors="replace").splitlines()
    return sorted({line.strip() for line in lines if line.strip()})
