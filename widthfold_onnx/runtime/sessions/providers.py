"""Finds out which execution provider can be used here, by running one node on it.

The runtime module is handed in, so that `runtime.sessions.session` stays the one that imports it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from widthfold_onnx.errors import UnverifiedError, UsageError
from widthfold_onnx.options import Provider
from widthfold_onnx.runtime.sessions.failures import words
from widthfold_onnx.runtime.sessions.libraries import missing_library, preload
from widthfold_onnx.text import printable

FATAL = 4
"""Severity at which the runtime's logger prints fatal errors only."""

NAMES = {
    Provider.CPU: "CPUExecutionProvider",
    Provider.CUDA: "CUDAExecutionProvider",
    Provider.TENSORRT: "TensorrtExecutionProvider",
}
_CHAINS = {
    Provider.CPU: (Provider.CPU,),
    Provider.CUDA: (Provider.CUDA, Provider.CPU),
    Provider.TENSORRT: (Provider.TENSORRT, Provider.CUDA, Provider.CPU),
}
CUDA_OPTIONS = {
    "cudnn_conv_algo_search": "HEURISTIC",
    "cudnn_conv_use_max_workspace": "1",
    "enable_cuda_graph": "0",
    "fuse_conv_bias": "0",
    "prefer_nhwc": "0",
    "use_tf32": "1",
}
"""Options of CUDA unless the caller chose others: all that affect times, so that none of them
depends on the defaults of a version. They are those of 1.31, but for the search: cuDNN's DEFAULT
was measured at a tenth of the speed of its heuristic choice."""

TENSORRT_OPTIONS = {"trt_builder_optimization_level": "3", "trt_timing_cache_enable": "True"}
"""The same for TensorRT: two models are built alike only if they share the times of its kernels."""

OFF = ("0", "false")
"""Values of options that switch something off, in lower case."""

CAPTURES = {"enable_cuda_graph", "trt_cuda_graph_enable"}
"""Options that record the first run and replay it, whatever is fed later."""

Failures = tuple[type[Exception], ...]
"""Exceptions that the runtime raises."""


def chain(
    provider: Provider, chosen: Mapping[str, str], *, tf32: bool
) -> list[tuple[str, dict[str, str]]]:
    """Return the provider and its fallbacks, with their options.

    Args:
        provider: the first of the chain.
        chosen: options of the provider itself; they win over ours.
        tf32: False makes CUDA compute float32 products in full, even against a chosen option.
    """
    options: dict[Provider, dict[str, str]] = {item: {} for item in _CHAINS[provider]}
    if Provider.CUDA in options:
        options[Provider.CUDA] |= CUDA_OPTIONS
    if Provider.TENSORRT in options:
        options[Provider.TENSORRT] |= TENSORRT_OPTIONS
        options[Provider.TENSORRT]["trt_timing_cache_path"] = _timing_cache().name
    options[provider] |= chosen
    if Provider.CUDA in options and not tf32:
        options[Provider.CUDA]["use_tf32"] = "0"
    return [(NAMES[item], own) for item, own in options.items()]


def choose(runtime: Any, failures: Failures, provider: Provider) -> Provider:
    """Return the provider to use: AUTO is CUDA if a CUDA device really runs a node, else the CPU.

    Raises:
        UnverifiedError: the one asked for cannot be used; says what is missing.
    """
    if provider is Provider.AUTO:
        cuda = obstacle(runtime, failures, Provider.CUDA)
        return Provider.CUDA if cuda is None else Provider.CPU
    reason = obstacle(runtime, failures, provider)
    if reason is not None:
        raise UnverifiedError(f"provider {provider} cannot be used: {reason}")
    return provider


def check_options(
    runtime: Any, failures: Failures, provider: Provider, chosen: Mapping[str, str]
) -> None:
    """Check that a usable provider also accepts these options.

    Raises:
        UsageError: it does not know one, or cannot use its value.
    """
    given = printable(", ".join(f"{name}={value}" for name, value in chosen.items()))
    if provider is Provider.CPU and chosen:
        # The runtime silently ignores them, and a report would name options without effect.
        raise UsageError(f"provider cpu takes no options: {given}")
    for name in CAPTURES & chosen.keys():
        if chosen[name].lower() not in OFF:
            raise UsageError(f"{name} repeats a run on its old inputs; it cannot be verified")
    reason = obstacle(runtime, failures, provider, tuple(chosen.items()))
    if reason is not None:
        raise UsageError(f"provider {provider} does not run with {given}: {reason}")


@cache
def obstacle(
    runtime: Any,
    failures: Failures,
    provider: Provider,
    chosen: tuple[tuple[str, str], ...] = (),
) -> str | None:
    """Return why a provider cannot run a node here with the chosen options, None if it can.

    The list of available providers only says what the runtime was built with, and a session
    silently falls back to the CPU; so one node is run with that fallback forbidden.
    """
    if provider is Provider.CPU:
        return None
    if NAMES[provider] not in runtime.get_available_providers():
        return f"this ONNX Runtime has no {NAMES[provider]}; pip install 'widthfold-onnx[gpu]'"
    preload(runtime)
    options = runtime.SessionOptions()
    options.log_severity_level = FATAL
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    cpu = NAMES[Provider.CPU]
    providers = [item for item in chain(provider, dict(chosen), tf32=False) if item[0] != cpu]
    try:
        session = runtime.InferenceSession(
            one_node(), options, providers=providers, enable_fallback=0
        )
        session.run(None, {"x": np.ones((1, 1, 1, 1), np.float32)})
    except failures as error:
        return missing_library(runtime, provider) or words(error)
    if session.get_providers()[0] != NAMES[provider]:
        return missing_library(runtime, provider) or "no usable device"
    return None


@cache
def _timing_cache() -> tempfile.TemporaryDirectory[str]:
    """Return the folder in which sessions of this process share TensorRT's kernel timings.

    It is removed with the process, or with the folder that `runtime.child` gives a child.
    """
    return tempfile.TemporaryDirectory(prefix="widthfold-tensorrt-")


def one_node() -> bytes:
    """Return a model of one Conv, since a device that cannot run one is of no use here."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1] * 4) for name in "xy"]
    weight = numpy_helper.from_array(np.ones((1, 1, 1, 1), np.float32), "w")
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "probe", ends[:1], ends[1:], [weight])
    opset = helper.make_opsetid("", 17)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    return bytes(model.SerializeToString())
