"""Time the same layers through PyTorch, with cuDNN's own tuning, as an independent reference.

A layer is a Conv and a negation, as in `gpu.grid`. PyTorch's profiler names the kernels that ran,
its own and ONNX Runtime's on the layer as it is. PyTorch runs a 1-D Conv as a 2-D one of
height 1, and so does this script: only then there is a channels-last format.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpu.graphs import model, to_last
from gpu.layers import AS_IS, Layer
from gpu.results import us
from gpu.stage import SLOW, Stage, noise
from widthfold_onnx.errors import CheckFailedError, UnverifiedError
from widthfold_onnx.options import Provider
from widthfold_onnx.runtime.session import Bound

LEAST_RUNS, MOST_RUNS = 5, 200


def run_rival(stage: Stage, chosen: Sequence[Layer]) -> None:
    """Time the layers in both memory formats, or as many as there is time for.

    Raises:
        CheckFailedError: the device no longer answers after an error.
    """
    try:
        import torch
    except ImportError as error:
        stage.results.add("torch", reason=f"PyTorch cannot be imported ({error})")
        return
    device = "cpu" if stage.provider is Provider.CPU else "cuda"
    if device == "cuda":
        if not torch.cuda.is_available():
            reason = f"PyTorch {torch.__version__} sees no CUDA device"
            stage.results.add("torch", reason=reason)
            return
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = True
    stage.results.add(
        "torch", version=torch.__version__, device=device, cudnn=torch.backends.cudnn.version()
    )
    cases = [(layer, last) for layer in chosen for last in (False, True)]
    todo = [case for case in cases if stage.results.row("torch", **_about(*case)) is None]
    todo.sort(key=lambda case: stage.results.has_failed("torch", **_about(*case)))
    for done, (layer, last) in enumerate(todo):
        if stage.seconds_left <= 0:
            stage.results.add("torch", unmeasured=len(todo) - done, reason="no time was left")
            return
        about = _about(layer, last)
        try:
            run = _layer(torch, layer, last, device)
            times = _times(torch, run, device, stage.scale.trial_seconds)
            about["kernels"] = _kernels(torch, run, device)
        except RuntimeError as error:  # what PyTorch raises where memory or a kernel lacks
            stage.results.add("torch", **about, error=str(error).partition("\n")[0])
            _check_alive(torch, device)
            continue
        about |= {"us": round(float(np.median(times)) * 1e6, 3), "samples_us": us(times)}
        try:
            about["runtime_kernels"] = _kernels(torch, _runtime(stage, layer, last), device)
        except UnverifiedError as error:
            about["runtime_error"] = str(error)
        stage.results.add("torch", **about)


def _check_alive(torch: Any, device: str) -> None:
    """Check that the device still answers after an error.

    Raises:
        CheckFailedError: it does not, so that nothing would run any more.
    """
    try:
        torch.zeros(1, device=device).item()
    except RuntimeError as error:
        raise CheckFailedError(f"the device is lost: {error}") from error


def _about(layer: Layer, last: bool) -> dict[str, Any]:
    layout = "nhwc" if last else "nchw"
    return {"layer": str(layer), "dtype": layer.dtype, "layout": layout, "bytes": layer.bytes}


def _runtime(stage: Stage, layer: Layer, last: bool) -> Bound:
    """Open the layer as it is in ONNX Runtime, and run it once."""
    weight, shape = noise(layer.weight_shape, layer.dtype), layer.shapes[0]
    opened = stage.open(model(layer, weight, AS_IS, last=last), stage.options(last=last))
    x = noise([shape[i] for i in to_last(len(shape) - 2)] if last else shape, layer.dtype)
    run = opened.on({"x": x})
    run()
    return run


def _layer(torch: Any, layer: Layer, last: bool, device: str) -> Callable[[], Any]:
    form = torch.channels_last if last else torch.contiguous_format
    flat = (1,) * (2 - len(layer.kernel))
    samples, channels, *lengths = layer.shapes[0]
    # PyTorch pads both ends of an axis alike: what one end has more is zeros of the input.
    least = [min(ends) for ends in layer.ends]
    more = [(a - n, b - n) for (a, b), n in zip(layer.ends, least, strict=True)]
    array = noise((samples, channels, *flat, *lengths), layer.dtype)
    outputs, inputs, *kernel = layer.weight_shape
    x, w = (
        torch.from_numpy(tensor).to(device).to(memory_format=form)
        for tensor in (
            np.pad(array, [(0, 0)] * (2 + len(flat)) + more),
            noise((outputs, inputs, *flat, *kernel), layer.dtype),
        )
    )
    functional = torch.nn.functional
    conv = functional.conv_transpose2d if layer.transposed else functional.conv2d
    pads = [0] * len(flat) + least
    strides = [1] * len(flat) + [layer.stride] * len(layer.kernel)

    def run() -> Any:
        with torch.inference_mode():
            return torch.neg(conv(x, w, stride=strides, padding=pads, groups=layer.group))

    return run


def _times(torch: Any, run: Callable[[], Any], device: str, seconds: float) -> Any:
    """Return the seconds of single runs; the first of them tunes and does not count."""
    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    run()
    wait()
    times: list[float] = []
    start = time.perf_counter()
    while True:
        before = time.perf_counter()
        run()
        wait()
        times.append(time.perf_counter() - before)
        elapsed = time.perf_counter() - start
        enough = len(times) >= LEAST_RUNS or elapsed > SLOW
        if (enough and elapsed > seconds) or len(times) == MOST_RUNS:
            return np.array(times)


def _kernels(torch: Any, run: Callable[[], Any], device: str) -> list[str]:
    """Return the names of what ran on the device, the longest first; none on the CPU."""
    if device != "cuda":
        return []
    kind = torch.profiler.ProfilerActivity.CUDA
    with torch.profiler.profile(activities=[kind]) as profile:
        run()
        torch.cuda.synchronize()
    events = sorted(profile.key_averages(), key=lambda event: -event.device_time_total)
    return [str(event.key)[:160] for event in events if event.device_time_total > 0]
