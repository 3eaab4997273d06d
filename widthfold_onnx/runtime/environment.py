"""Describe where numbers were measured: versions, the machine and its GPU, and how busy they were.

The state of a GPU comes from NVML, NVIDIA's library for monitoring. Its package, nvidia-ml-py, is
optional, and imported only where the provider is CUDA or TensorRT. What NVML does not report is
None: a part of a GPU (MIG), for example, has no clocks.
"""

from __future__ import annotations

import contextlib
import os
import platform
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from typing import Any

from widthfold_onnx.options import RuntimeOptions
from widthfold_onnx.results import Environment, Gpu, GpuState
from widthfold_onnx.runtime.library import cudnn_version, runtime_version
from widthfold_onnx.runtime.provider_traits import traits_of
from widthfold_onnx.system import clock_mhz, cores, load_average, processor
from widthfold_onnx.text import printable


@dataclass(frozen=True)
class StartReadings:
    """Load and clock before the work; a report shows them beside those after it."""

    load: float = field(default_factory=load_average)
    mhz: float | None = field(default_factory=clock_mhz)


def environment(
    options: RuntimeOptions, before: StartReadings, u8s8_error: int | None = None
) -> Environment:
    """Describe the machine now.

    Args:
        options: where the models ran.
        before: readings from before the work.
        u8s8_error: the result of `runtime.kernels.u8s8_error`; None if it was not called.
    """
    return Environment(
        widthfold=version("widthfold-onnx"),
        onnx=version("onnx"),
        onnxruntime=runtime_version(),
        provider=options.provider.value,
        provider_options=dict(options.provider_options),
        session_options=dict(options.session_options),
        u8s8_error=u8s8_error,
        machine=machine(),
        vectors=processor().vectors,
        cores=cores(),
        python=platform.python_version(),
        load_before=round(before.load, 2),
        load_after=round(load_average(), 2),
        mhz_before=before.mhz,
        mhz_after=clock_mhz(),
        command="",
    )


def other_runtime(release: str) -> str:
    """Return a warning if forms were measured with another release of ONNX Runtime; else ""."""
    running = runtime_version()
    if not release or not running or release == running:
        return ""
    return (
        f"measured with ONNX Runtime {printable(release, 40)}, running {running}: measure again, "
        "or verify the speed"
    )


@cache
def version(*names: str) -> str:
    """Return the version of the first of these distributions that is installed, "" if none is."""
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return ""


def machine() -> str:
    """Return system, architecture and name of the processor."""
    return f"{platform.system()} {platform.machine()} {processor().name}"


PERIOD = 0.1
"""Seconds between two looks at the GPU while models are timed."""

REASON = "nvmlClocksThrottleReason"
"""Prefix of the names that NVML gives to reasons for low clocks."""

_NO_LIMIT = ("None", "All", "GpuIdle", "ApplicationsClocksSetting", "UserDefinedClocks")
"""Reasons that are no throttling: the GPU has no work, or somebody has set its clocks."""

_CUDA = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12")


class Device:
    """The GPU of a provider.

    Attributes:
        missing: why NVML reports nothing; "" if it does, or if the provider uses no NVIDIA GPU.
    """

    def __init__(self, options: RuntimeOptions) -> None:
        self.missing = ""
        self._nvml: Any = None
        self._handle: Any = None
        if traits_of(options.provider).device != "nvidia":
            return
        try:
            import pynvml
        except ImportError:
            self.missing = "nvidia-ml-py is missing: pip install 'widthfold-onnx[nvml]'"
            return
        try:
            pynvml.nvmlInit()
            self._handle = _handle(pynvml, int(options.provider_options.get("device_id", 0)))
        except pynvml.NVMLError as error:
            self.missing = f"NVML does not answer: {printable(str(error))}"
        else:
            self._nvml = pynvml

    @property
    def answers(self) -> bool:
        """True if NVML answers for a GPU."""
        return self._nvml is not None

    def facts(self) -> Gpu:
        """Return name and versions; only `missing` where NVML reports nothing."""
        if not self.answers:
            return Gpu(missing=self.missing)
        newest = self._ask("nvmlSystemGetCudaDriverVersion_v2")
        return Gpu(
            name=self._ask("nvmlDeviceGetName", self._handle) or "",
            driver=self._ask("nvmlSystemGetDriverVersion") or "",
            driver_cuda=f"{newest // 1000}.{newest % 1000 // 10}" if newest else "",
            cuda=version(*_CUDA),
            cudnn=".".join(map(str, cudnn_version())),
        )

    def state(self) -> GpuState:
        """Return clocks, and why they are low; call it only if NVML `answers`."""
        bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", self._handle) or 0
        reasons = [
            name.removeprefix(REASON)
            for name, bit in vars(self._nvml).items()
            if name.startswith(REASON) and bits & bit
        ]
        return GpuState(
            sm_mhz=self._ask("nvmlDeviceGetClockInfo", self._handle, self._nvml.NVML_CLOCK_SM),
            memory_mhz=self._ask("nvmlDeviceGetClockInfo", self._handle, self._nvml.NVML_CLOCK_MEM),
            throttled=sorted(name for name in reasons if name not in _NO_LIMIT),
        )

    def _ask(self, question: str, *details: object) -> Any:
        if not self.answers:
            return None
        try:
            return getattr(self._nvml, question)(*details)
        except self._nvml.NVMLError:
            return None


@contextlib.contextmanager
def watched(options: RuntimeOptions) -> Iterator[list[GpuState]]:
    """Record the state of the GPU during the block: at its begin and end, and every `PERIOD`.

    Args:
        options: provider and device are used. The list stays empty where NVML reports nothing.
    """
    device, states, end = Device(options), list[GpuState](), threading.Event()
    if not device.answers:
        yield states
        return

    def look() -> None:
        while not end.wait(PERIOD):
            states.append(device.state())

    states.append(device.state())
    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield states
    finally:
        end.set()
        watcher.join()
        states.append(device.state())


def _handle(nvml: Any, number: int) -> Any:
    """Return the device that has a number in CUDA: NVML itself ignores CUDA_VISIBLE_DEVICES."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    name = visible[number].strip() if number < len(visible) else ""
    if name and not name.isdigit():
        return nvml.nvmlDeviceGetHandleByUUID(name)
    return nvml.nvmlDeviceGetHandleByIndex(int(name or number))
