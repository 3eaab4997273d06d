"""Part 6: the same layers through PyTorch, with cuDNN's own tuning, as an independent reference.

A layer is a Conv and a negation, as in part 3. PyTorch names the kernels that ran by its profiler,
its own and those of ONNX Runtime on the layer as it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpu.layers import AS_IS, TO_LAST, Layer, model
from gpu.results import us
from gpu.stage import Stage, noise
from widthfold_onnx.options import Provider
from widthfold_onnx.runtime.binding import Bound

LEAST_RUNS, MOST_RUNS = 5, 200


def run_rival(stage: Stage, chosen: Sequence[Layer]) -> None:
    """Time all layers in both memory formats, or as many as there is time for."""
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
    todo = 2 * len(chosen)
    for layer in chosen:
        for last in (False, True):
            if stage.left <= 0:
                stage.results.add("torch", unmeasured=todo, reason="no time was left")
                return
            todo -= 1
            about: dict[str, Any] = {
                "layer": str(layer),
                "dtype": layer.dtype,
                "layout": "nhwc" if last else "nchw",
                "bytes": layer.bytes,
            }
            try:
                run = _layer(torch, layer, last, device)
                times = _times(torch, run, device, stage.scale.trial_seconds[0])
                about["kernels"] = _kernels(torch, run, device)
            except RuntimeError as error:  # what PyTorch raises where memory or a kernel lacks
                stage.results.add("torch", **about, error=str(error).partition("\n")[0])
                continue
            median = round(float(np.median(times)) * 1e6, 3)
            about |= {"us": median, "samples_us": us(times)}
            with stage.guarded("torch", **about):
                names = _kernels(torch, _runtime(stage, layer, last), device)
                stage.results.add("torch", **about, runtime_kernels=names)


def _runtime(stage: Stage, layer: Layer, last: bool) -> Bound:
    """The layer as it is in ONNX Runtime, warmed up."""
    weight, shape = noise(layer.weight_shape, layer.dtype), layer.shapes[0]
    opened = stage.open(model(layer, weight, AS_IS, last=last), stage.options(last=last))
    x = noise([shape[i] for i in TO_LAST] if last else shape, layer.dtype)
    run = opened.on({"x": x})
    run()
    return run


def _layer(torch: Any, layer: Layer, last: bool, device: str) -> Callable[[], Any]:
    form = torch.channels_last if last else torch.contiguous_format
    x, w = (
        torch.from_numpy(noise(shape, layer.dtype)).to(device).to(memory_format=form)
        for shape in (layer.shapes[0], layer.weight_shape)
    )
    pads = [k // 2 for k in layer.kernel]

    def run() -> Any:
        with torch.inference_mode():
            return torch.neg(torch.nn.functional.conv2d(x, w, stride=layer.stride, padding=pads))

    return run


def _times(torch: Any, run: Callable[[], Any], device: str, seconds: float) -> Any:
    """Seconds of single runs; the first of them tunes and does not count."""
    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    run()
    wait()
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < LEAST_RUNS or (
        time.perf_counter() - start < seconds and len(times) < MOST_RUNS
    ):
        before = time.perf_counter()
        run()
        wait()
        times.append(time.perf_counter() - before)
    return np.array(times)


def _kernels(torch: Any, run: Callable[[], Any], device: str) -> list[str]:
    """Names of what ran on the device, the longest first; empty on the CPU."""
    if device != "cuda":
        return []
    kind = torch.profiler.ProfilerActivity.CUDA
    with torch.profiler.profile(activities=[kind]) as found:
        run()
        torch.cuda.synchronize()
    events = sorted(found.key_averages(), key=lambda event: -event.device_time_total)
    return [str(event.key)[:160] for event in events if event.device_time_total > 0]
