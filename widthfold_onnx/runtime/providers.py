"""Which execution provider can be used here, found out by running one node on it.

The runtime module is handed in, so that `runtime.session` stays the one that imports it.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from widthfold_onnx.errors import UnverifiedError, UsageError
from widthfold_onnx.options import Provider
from widthfold_onnx.text import printable

FATAL = 4
"""Severity of the runtime's logger at which it prints nothing but its own end."""

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
_LIBRARIES = {
    Provider.CUDA: "onnxruntime_providers_cuda",
    Provider.TENSORRT: "onnxruntime_providers_tensorrt",
}

CAPTURES = {"enable_cuda_graph", "trt_cuda_graph_enable"}
"""Options that record the first run and replay it, whatever is fed later."""

_LONGEST = 500
"""Characters of what the runtime says; it begins with places in its own source."""

Failures = tuple[type[Exception], ...]
"""What the runtime raises."""


def chain(
    provider: Provider, chosen: Mapping[str, str], *, tf32: bool
) -> list[tuple[str, dict[str, str]]]:
    """The provider and what takes the nodes that it does not, with their options.

    Args:
        provider: the first of the chain.
        chosen: options of the provider itself; they win over ours.
        tf32: False makes CUDA compute float32 products in full, whatever was chosen.
    """
    options: dict[Provider, dict[str, str]] = {item: {} for item in _CHAINS[provider]}
    if Provider.CUDA in options:
        # cuDNN's default algorithm was measured at a tenth of the speed of its heuristic choice.
        options[Provider.CUDA] |= {"cudnn_conv_algo_search": "HEURISTIC", "use_tf32": "1"}
    options[provider] |= chosen
    if Provider.CUDA in options and not tf32:
        options[Provider.CUDA]["use_tf32"] = "0"
    return [(NAMES[item], own) for item, own in options.items()]


def choose(runtime: Any, failures: Failures, provider: Provider) -> Provider:
    """The provider to use: AUTO is CUDA where a CUDA device really runs a node, else the CPU.

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
    """Check that a provider that can be used also takes these options.

    Raises:
        UsageError: it does not know one, or cannot use its value.
    """
    words = printable(", ".join(f"{name}={value}" for name, value in chosen.items()))
    if provider is Provider.CPU and chosen:
        # The runtime ignores them without a word, and a report would name what had no effect.
        raise UsageError(f"provider cpu takes no options: {words}")
    for name in CAPTURES & chosen.keys():
        if chosen[name].lower() not in ("0", "false"):
            raise UsageError(f"{name} repeats a run on its old inputs; it cannot be verified")
    reason = obstacle(runtime, failures, provider, tuple(chosen.items()))
    if reason is not None:
        raise UsageError(f"provider {provider} does not run with {words}: {reason}")


@cache
def obstacle(
    runtime: Any,
    failures: Failures,
    provider: Provider,
    chosen: tuple[tuple[str, str], ...] = (),
) -> str | None:
    """Why a provider cannot run a single node here with the chosen options, None where it can.

    The list of available providers only says what the runtime was built with, and a session
    falls back to the CPU without a word; so one node is run with that fallback forbidden.
    """
    if provider is Provider.CPU:
        return None
    if NAMES[provider] not in runtime.get_available_providers():
        return f"this ONNX Runtime has no {NAMES[provider]}; pip install 'widthfold-onnx[gpu]'"
    with contextlib.redirect_stdout(io.StringIO()):  # it prints what it does not find
        runtime.preload_dlls()
    options = runtime.SessionOptions()
    options.log_severity_level = FATAL
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    cpu = NAMES[Provider.CPU]
    providers = [item for item in chain(provider, dict(chosen), tf32=False) if item[0] != cpu]
    try:
        session = runtime.InferenceSession(
            _one_node(), options, providers=providers, enable_fallback=0
        )
        session.run(None, {"x": np.ones(1, np.float32)})
    except failures as error:
        return _missing_library(runtime, provider) or printable(str(error), _LONGEST)
    if session.get_providers()[0] != NAMES[provider]:
        return _missing_library(runtime, provider) or "no usable device"
    return None


def _one_node() -> bytes:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    node = helper.make_node("Neg", ["x"], ["y"])
    graph = helper.make_graph([node], "probe", ends[:1], ends[1:])
    opset = helper.make_opsetid("", 17)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    return bytes(model.SerializeToString())


def _missing_library(runtime: Any, provider: Provider) -> str | None:
    """The loader's words on a provider library that does not load, None where it does."""
    folder = Path(runtime.__file__).parent / "capi"
    try:
        for library in folder.glob("*onnxruntime_providers_shared.*"):
            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        for library in folder.glob(f"*{_LIBRARIES[provider]}.*"):
            ctypes.CDLL(str(library))
    except OSError as error:
        return printable(str(error).replace(f"{folder}/", ""))
    return None
