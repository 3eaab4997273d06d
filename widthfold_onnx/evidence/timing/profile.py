"""Measure the time of each node, where it ran, and the least time that its work takes.

* `profile`: times by the runtime's own profiler. They show slow nodes and do not measure the model,
  because profiling costs time. Nodes inside an If, Loop or Scan are listed by themselves, and their
  time is taken from that of the If, Loop or Scan.
* `placement`: the provider on which each node ran. A session on a GPU silently hands nodes to the
  CPU. For a few nodes that handle shapes that is intended; with a Conv there, the time says nothing
  about the GPU.
* `Roofline`: the longer one of two times: the bytes of a node at the speed of a copy, and its
  multiply-adds at the speed of a matrix product. Multiply-adds with zero weights do not count, be
  they of a fold or of the runtime's padding. So a layer and its fold have the same work.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from widthfold_onnx.arrays import Array
from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.model.proto.tensors import BITS
from widthfold_onnx.model.proto.walk import all_graphs
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.options import Provider, RuntimeOptions
from widthfold_onnx.results import NodeTime, Side
from widthfold_onnx.runtime.kernels import copy_speed, multiply_speed
from widthfold_onnx.runtime.provider_traits import Level, traits_of
from widthfold_onnx.runtime.session import Feeds, Session
from widthfold_onnx.runtime.settings import Setting, open_at
from widthfold_onnx.text import printable

WARM_RUNS = 3
PROFILED_RUNS = 10
PROFILED_SECONDS = 0.5
"""Seconds after which no further run is profiled; at least one run is."""

SHORTEST = 10
"""Microseconds below which no node is compared with its least time, as times are whole ones."""

HOLDING = ("If", "Loop", "Scan")
"""Operators that run the nodes of their bodies."""


def profile(open_with: Callable[[Path], Session], feeds: Feeds, least: LeastTime) -> list[NodeTime]:
    """Profile a model.

    Args:
        open_with: opens the session with profiling into the given prefix.
        feeds: one input set.
        least: returns the least time of a node on this machine.

    Returns:
        All nodes of the optimized graph that ran, slowest first; time in microseconds per run.

    Raises:
        UnverifiedError: the model does not run.
    """
    with tempfile.TemporaryDirectory() as folder:
        session = open_with(Path(folder) / "profile")
        run = session.bound(feeds)
        for _ in range(WARM_RUNS):
            run()
        end = time.perf_counter() + PROFILED_SECONDS
        run()
        runs = 1
        while runs < PROFILED_RUNS and time.perf_counter() < end:
            run()
            runs += 1
        events = json.loads(session.end_profile().read_bytes(), strict=False)
    nodes = _nodes(events, WARM_RUNS + runs, least)
    return sorted(nodes, key=lambda node: (-node.us, node.name))


def _nodes(events: list[dict[str, Any]], runs: int, least: LeastTime) -> list[NodeTime]:
    """Return the mean time of every node over the runs after the warm ones; `runs` counts all."""
    samples: dict[tuple[str, str, str], list[tuple[int, float | None]]] = defaultdict(list)
    for event, duration in _own_times(events):
        details = event["args"]
        name = event["name"].removesuffix("_kernel_time")
        key = name, details["op_name"], details["provider"]
        samples[key].append((duration, least(name, details)))
    results = []
    for (name, op, provider), times in samples.items():
        # A node of a loop body runs several times in a run of the model: its times are added.
        per_run = max(len(times) // runs, 1)
        warm = times[WARM_RUNS * per_run :]
        total = sum(duration for duration, _ in warm)
        mean = total / max(len(warm) / per_run, 1)
        floors = [seconds for _, seconds in warm if seconds is not None]
        is_known = len(floors) == len(warm) and mean >= SHORTEST
        fraction = round(sum(floors) * 1e6 / total, 4) if is_known else None
        results.append(
            NodeTime(name=name, op=op, provider=provider, us=round(mean, 2), reached=fraction)
        )
    return results


def _own_times(events: list[dict[str, Any]]) -> list[tuple[dict[str, Any], int]]:
    """Return the events of nodes, ordered by start, with their times less those of their bodies.

    A node is in the body of the innermost If, Loop or Scan that has not ended when the node starts.
    Times are whole microseconds, rounded down, so one that ends at that microsecond has ended.
    """
    kernels = [e for e in events if e.get("cat") == "Node" and e["name"].endswith("_kernel_time")]
    kernels.sort(key=lambda e: (e["ts"], -e["dur"], e["args"]["op_name"] not in HOLDING))
    times = [int(event["dur"]) for event in kernels]
    holders: list[int] = []
    for index, event in enumerate(kernels):
        while holders and event["ts"] >= kernels[holders[-1]]["ts"] + kernels[holders[-1]]["dur"]:
            holders.pop()
        if holders:
            times[holders[-1]] -= event["dur"]
        if event["args"]["op_name"] in HOLDING:
            holders.append(index)
    return [(event, max(duration, 0)) for event, duration in zip(kernels, times, strict=True)]


HEAVY = ("Conv", "MatMul", "Gemm")
"""Parts of the names of operators that do the work of a model, fused and quantized ones too."""

MAX_NAMED = 5


def placement(nodes: Sequence[NodeTime]) -> dict[str, int]:
    """Count the nodes that ran on each provider."""
    return dict(Counter(node.provider for node in nodes))


def fallbacks(nodes: Sequence[NodeTime], provider: Provider) -> list[NodeTime]:
    """Return the nodes that did not run on the provider that was asked for."""
    return [node for node in nodes if node.provider != traits_of(provider).name]


def fallback_lines(sides: dict[str, Side], provider: str, *, heavy: bool) -> list[str]:
    """Return a line for each model in which nodes fell back.

    Args:
        sides: the timed models by name.
        provider: the provider that the caller asked for.
        heavy: True names the nodes that are `HEAVY`, as an alarm; False names the others.
    """
    fallback_nodes = {
        name: [n for n in side.fallbacks if any(word in n.op for word in HEAVY) is heavy]
        for name, side in sides.items()
    }
    alarm = "FALLBACK " if heavy else ""
    return [
        f"{alarm}in the {name} model: {_node_text(nodes)}, not on {provider}"
        for name, nodes in fallback_nodes.items()
        if nodes
    ]


def _node_text(nodes: Sequence[NodeTime]) -> str:
    names = [f"{node.op} {printable(node.name, 80)}" for node in nodes[:MAX_NAMED]]
    if remainder := len(nodes) - len(names):
        names.append(f"{remainder} more")
    where = " and ".join(sorted({node.provider for node in nodes}))
    return f"{', '.join(names)} ran on {where}"


LeastTime = Callable[[str, Mapping[str, Any]], float | None]
"""Returns the least seconds of a node, by its name and the details of one run in the profile."""

Weights = Mapping[str, Array | None]
"""Weights of the nodes that multiply, by name of the node; None for a computed weight."""

ITEM_BYTES = {
    onnx.TensorProto.DataType.Name(kind).lower(): bits // 8
    for kind, bits in BITS.items()
    if bits >= 8
}
"""Bytes of an element, by the names that the profile gives types."""

COUNTED = ("float", "double", "int8", "uint8")
"""Types for which matrix products are measured."""

COPIED_BYTES = [2**exponent for exponent in range(18, 27, 2)]
"""Bytes of the copies that are measured, from the size of the first cache to memory."""

WEIGHTS = {
    **{op: operators[0].inputs.weight for (_, op), operators in OPERATORS.items()},
    **dict.fromkeys(("NhwcFusedConv", "FusedMatMul", "FusedGemm"), 1),
    **dict.fromkeys(("MatMulIntegerToFloat", "DynamicQuantizeMatMul"), 1),
    "QGemm": 3,
}
"""Position of the weight among the inputs of the operators that multiply: operators with a
description, and operators of ONNX Runtime's optimized graphs."""

MULTIPLIED = {"DynamicQuantizeMatMul": "uint8"}
"""Types that operators multiply, if that is not the type of the first input: this operator
quantizes it."""

UNKNOWN_WORK = (
    *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Shape", "Size"),
    *("If", "Loop", "Scan"),
)
"""Operators that may copy nothing, and operators whose bodies do the work."""

PARTLY_READ = ("Gather", "GatherElements", "GatherND", "Slice", "Resize", "Upsample")
"""Operators that may read no more than they write."""


class Roofline:
    """The speeds of this machine, measured when they are needed, with the options of the timing."""

    def __init__(self, options: RuntimeOptions) -> None:
        self._setting = Setting(Level.ALL, options)
        self.copy_speeds: dict[int, float] = {}
        self.multiply_speeds: dict[str, float] = {}

    def of(self, model: Path, setting: Setting) -> LeastTime:
        """Return the `LeastTime` of a model; `no_time` unless it runs on the CPU."""
        if setting.options.provider is not Provider.CPU:
            return no_time
        weights = self._weights(model, setting)
        return lambda name, details: self._least(weights, name, details)

    def limits(self) -> dict[str, float]:
        """Return the speeds measured so far, per second, by name."""
        copies = sorted(self.copy_speeds.items())
        speeds = {f"bytes of a copy of {size >> 10} KiB": speed for size, speed in copies}
        return speeds | {f"operations on {dtype}": v for dtype, v in self.multiply_speeds.items()}

    def _least(self, weights: Weights, name: str, details: Mapping[str, Any]) -> float | None:
        op, size = details["op_name"], moved_bytes(details)
        if size is None or op in UNKNOWN_WORK:
            return None
        # More bytes are never copied faster, so the speed of fewer bytes is not too low.
        copy = max((count for count in COPIED_BYTES if count <= size), default=COPIED_BYTES[0])
        if copy not in self.copy_speeds:
            self.copy_speeds[copy] = copy_speed(self._setting, copy)
        seconds = size / self.copy_speeds[copy]
        if op not in WEIGHTS:
            return seconds
        dtype = MULTIPLIED.get(op) or next(iter(details["input_type_shape"][0]))
        if name not in weights or dtype not in COUNTED:
            return None
        if dtype not in self.multiply_speeds:
            self.multiply_speeds[dtype] = multiply_speed(self._setting, dtype)
        return max(seconds, 2 * multiply_adds(weights[name], details) / self.multiply_speeds[dtype])

    def _weights(self, model: Path, setting: Setting) -> Weights:
        """Return the weights of the runtime's optimized graph."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "optimized.onnx"
            try:
                open_at(model, setting, optimized=path)
            except UnverifiedError:  # too large for one file
                return {}
            graphs = list(all_graphs(onnx.load(path).graph))
        constants = {tensor.name: tensor for graph in graphs for tensor in graph.initializer}
        layers = [node for graph in graphs for node in graph.node if node.op_type in WEIGHTS]
        times = Counter(node.name for node in layers)
        weights_by_name: dict[str, Array | None] = {}
        for node in layers:
            if times[node.name] == 1:  # both branches of a guard may hold a node of one name
                weight = constants.get(node.input[WEIGHTS[node.op_type]])
                weights_by_name[node.name] = (
                    None if weight is None else numpy_helper.to_array(weight)
                )
        return weights_by_name


def no_time(name: str, details: Mapping[str, Any]) -> None:
    """Return None: the least seconds of the node are not known."""


def moved_bytes(details: Mapping[str, Any]) -> int | None:
    """Return the bytes that a node reads and writes; None if a type is not known."""
    inputs, outputs = (_bytes(details[f"{side}_type_shape"]) for side in ("input", "output"))
    if inputs is None or outputs is None:
        return None
    return outputs + (min(inputs, outputs) if details["op_name"] in PARTLY_READ else inputs)


def _bytes(tensors: Sequence[Mapping[str, Sequence[int]]]) -> int | None:
    pairs = [pair for tensor in tensors for pair in tensor.items()]
    if any(kind not in ITEM_BYTES for kind, _ in pairs):
        return None
    return sum(ITEM_BYTES[kind] * math.prod(dims) for kind, dims in pairs)


def multiply_adds(weight: Array | None, details: Mapping[str, Any]) -> int:
    """Return the multiply-adds of a node.

    Args:
        weight: None if it is computed. The profile does not list a weight that the runtime has
            packed.
        details: the details of one run in the profile.
    """
    op = details["op_name"]
    inputs = [next(iter(tensor.values())) for tensor in details["input_type_shape"]]
    output = next(iter(details["output_type_shape"][0].values()))
    if weight is not None:
        dims, count = weight.shape, int(np.count_nonzero(weight))
    else:
        dims = tuple(inputs[WEIGHTS[op]])
        count = math.prod(dims)
    if "Conv" in op:
        # The first axis of a weight has the output channels; transposed, the input channels.
        shared, tensor = dims[0], inputs[0] if op == "ConvTranspose" else output
    else:
        shared, tensor = math.prod(dims[:-2]) * (output[-1] if len(dims) > 1 else 1), output
    return int(count * math.prod(tensor) // max(shared, 1))
