"""PyTorch on a layer, with cuDNN's own tuning, as a rival on a GPU.

PyTorch runs a 1-D Conv as a 2-D one of height 1, and so does this module: only then there is a
channels-last format. Float32 is computed in TF32, as ONNX Runtime does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from benchmark.one_process import paired
from benchmark.openvino import cell
from benchmark.report import Cell
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.runtime.clock import Run, clock_of
from widthfold_onnx.runtime.settings import OpenModels, run_of


def against_pytorch(model: Path, options: VerifyOptions) -> Cell:
    """The model of one layer in ONNX Runtime, at its best setting, against the faster format.

    Both alternate in one process; a run ends when the device is done.

    Args:
        model: one Conv or ConvTranspose, and perhaps a Neg behind it.
        options: provider, and seconds for the timing.

    Raises:
        UnverifiedError: the layer does not run in ONNX Runtime.
    """
    try:
        import torch
    except ImportError:
        return Cell(note="not installed")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and options.provider != "cpu":
        return Cell(note="sees no GPU")
    torch.set_num_threads(options.threads)
    torch.backends.cudnn.benchmark = torch.backends.cudnn.allow_tf32 = True
    times = OpenModels.of([model] * 2, options).setting_times(None, options.time_budget / 4)
    original, copy = (run_of(session, times.inputs.sets) for session in times.best_sessions)
    clock, cells = clock_of(options), []
    for form in (torch.contiguous_format, torch.channels_last):
        try:
            rival = _run(torch, onnx.load(model).graph, device, form)
            pair = paired(original, rival, copy, budget=options.time_budget / 3, clock=clock)
        except RuntimeError as error:  # what PyTorch raises where memory or a kernel lacks
            cells.append(Cell(note=f"does not run: {str(error).partition(chr(10))[0]}"))
        else:
            cells.append(cell(pair))
    return max(cells, key=lambda found: found.ratio or 0.0)


def _run(torch: Any, graph: onnx.GraphProto, device: str, form: Any) -> Run:
    """Return a call that runs the layer once."""
    node, *behind = graph.node
    settings = {it.name: onnx.helper.get_attribute_value(it) for it in node.attribute}
    weight = numpy_helper.to_array(graph.initializer[0])
    rank = weight.ndim - 2
    flat = (1,) * (2 - rank)
    samples, channels, *lengths = (
        dim.dim_value for dim in graph.input[0].type.tensor_type.shape.dim
    )
    # PyTorch pads both ends of an axis alike: what one end has more is zeros of the input.
    ends = list(zip(settings["pads"][:rank], settings["pads"][rank:], strict=True))
    least = [min(pair) for pair in ends]
    more = [(a - n, b - n) for (a, b), n in zip(ends, least, strict=True)]
    shape = (samples, channels, *flat, *lengths)
    array = np.random.default_rng(0).standard_normal(shape, np.float32).astype(weight.dtype)
    x, w = (
        torch.from_numpy(tensor).to(device).to(memory_format=form)
        for tensor in (
            np.pad(array, [(0, 0)] * (2 + len(flat)) + more),
            weight.reshape(*weight.shape[:2], *flat, *weight.shape[2:]),
        )
    )
    functional = torch.nn.functional
    is_transposed = node.op_type == "ConvTranspose"
    conv = functional.conv_transpose2d if is_transposed else functional.conv2d
    pads, strides = [0] * len(flat) + least, [1] * len(flat) + list(settings["strides"])
    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)

    def run(_: int) -> None:
        with torch.inference_mode():
            y = conv(x, w, stride=strides, padding=pads, groups=settings["group"])
            if behind:
                torch.neg(y)
            wait()

    run(0)  # cuDNN tunes
    return run
