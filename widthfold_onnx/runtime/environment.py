"""Describes the conditions of a figure: versions, machine, and how busy it was."""

from __future__ import annotations

import contextlib
import importlib.util
import platform
import re
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from widthfold_onnx.options import RuntimeOptions
from widthfold_onnx.results import Environment
from widthfold_onnx.system import clock_mhz, cores, load_average, processor
from widthfold_onnx.text import printable


@dataclass(frozen=True)
class Before:
    """Readings from before the work, so that a change during it shows."""

    load: float = field(default_factory=load_average)
    mhz: float | None = field(default_factory=clock_mhz)


def environment(
    options: RuntimeOptions, before: Before, u8s8_error: int | None = None
) -> Environment:
    """Describe the machine now.

    Args:
        options: where the models ran.
        before: readings from before the work.
        u8s8_error: `runtime.kernels.u8s8_error`, None where it was not asked.
    """
    return Environment(
        widthfold=version("widthfold-onnx"),
        onnx=version("onnx"),
        onnxruntime=runtime_release(),
        provider=options.provider.value,
        provider_options=dict(options.provider_options),
        session_options=dict(options.session_options),
        u8s8_error=u8s8_error,
        machine=machine(),
        cores=cores(),
        python=platform.python_version(),
        load_before=round(before.load, 2),
        load_after=round(load_average(), 2),
        mhz_before=before.mhz,
        mhz_after=clock_mhz(),
        command="",
    )


def runtime_release() -> str:
    """Return the version of ONNX Runtime, "" if it is not installed; it is not imported.

    A dozen packages install the module, some under versions of their own, so its text tells.
    """
    spec = importlib.util.find_spec("onnxruntime")
    text = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
    told = re.search(r"""^__version__ = ["'](.+)["']""", text, re.MULTILINE)
    return told[1] if told else ""


def other_runtime(measured: str) -> str:
    """Say that forms were measured with another version of ONNX Runtime; "" if not, or unknown."""
    running = runtime_release()
    if not measured or not running or measured == running:
        return ""
    return (
        f"measured with ONNX Runtime {printable(measured, 40)}, running {running}: measure again, "
        "or verify the speed"
    )


def version(*names: str) -> str:
    """Return the version of the first of these distributions that is installed, "" if none is."""
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return ""


def machine() -> str:
    """Return system, architecture and name of the processor."""
    return f"{platform.system()} {platform.machine()} {processor().name}"
