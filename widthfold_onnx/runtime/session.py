"""The one door to ONNX Runtime: open a model by path, feed it, get arrays back.

The runtime is imported on first use, so that rewriting works without it. Whatever goes wrong
behind this door becomes an `UnverifiedError` of one line, and nothing is printed.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.options import Provider
from widthfold_onnx.text import printable

Array = npt.NDArray[Any]
Feeds = Mapping[str, Array]

_FATAL = 4
"""Severity of the runtime's logger at which it prints nothing but its own end."""

_NAMES = {
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

_DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
}
"""Element types that the runtime calls otherwise than numpy does."""


class Level(StrEnum):
    """How much the runtime may rewrite the model itself before it runs it."""

    DISABLED = "disabled"
    EXTENDED = "extended"
    ALL = "all"


@dataclass(frozen=True)
class Port:
    """One input of a model.

    Attributes:
        name: as in the model.
        dtype: numpy's name of the element type, "string", or the runtime's own words for a type
            that is no tensor, e.g. "seq(tensor(float))".
        dims: sizes, symbols, or None where nothing is known. The runtime shows a scalar and a
            tensor of unknown rank alike, as ().
    """

    name: str
    dtype: str
    dims: tuple[int | str | None, ...]


class Session:
    """A model that is loaded and ready to run; made by `open_session`."""

    def __init__(self, session: Any, provider: Provider, label: str) -> None:
        self._session = session
        self._label = label
        self.provider = provider
        self.inputs = [_port(meta) for meta in session.get_inputs()]
        self.outputs = [str(meta.name) for meta in session.get_outputs()]
        self.overridable = [str(meta.name) for meta in session.get_overridable_initializers()]

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Run once; a sequence of tensors comes back as ``name[0]``, ``name[1]``, ...

        Raises:
            UnverifiedError: the runtime stopped, or an output is no tensor.
        """
        with self._stops():
            values = self._session.run(self.outputs, dict(feeds))
        arrays: dict[str, Array] = {}
        for name, value in zip(self.outputs, values, strict=True):
            arrays.update(_arrays(name, value))
        return arrays

    def bound(self, feeds: Feeds) -> Callable[[], None]:
        """A call that runs once on inputs that lie on the device already, for timing.

        Raises:
            UnverifiedError: the feeds do not fit; the call raises it where a run stops.
        """
        if any(array.dtype.kind in "OUS" for array in feeds.values()):
            return lambda: self.run(feeds) and None  # strings have no buffer to bind
        runtime = _runtime()
        device = "cpu" if self.provider is Provider.CPU else "cuda"
        with self._stops():
            binding = self._session.io_binding()
            for name, array in feeds.items():
                value = runtime.OrtValue.ortvalue_from_numpy(array, device, 0)
                binding.bind_ortvalue_input(name, value)
            for name in self.outputs:
                binding.bind_output(name, device)

        def once() -> None:
            with self._stops():
                self._session.run_with_iobinding(binding)
                binding.synchronize_outputs()

        return once

    @contextlib.contextmanager
    def _stops(self) -> Any:
        try:
            yield
        except _failures() as error:
            raise UnverifiedError(f"{self._label} does not run: {printable(str(error))}") from error


def runtime_version() -> str:
    """Version of the installed ONNX Runtime.

    Raises:
        UnverifiedError: it is not installed.
    """
    return str(_runtime().__version__)


def open_session(
    model: Path,
    provider: Provider = Provider.AUTO,
    level: Level = Level.ALL,
    threads: int = 1,
    *,
    tf32: bool = False,
) -> Session:
    """Load a model; its external data is found because it is opened by path.

    Idle threads sleep instead of spinning: a spinning pool makes times depend on the load.

    Args:
        model: the file.
        provider: AUTO takes CUDA where a CUDA device really runs a node, else the CPU.
        level: the runtime's own optimization level.
        threads: threads inside one operator.
        tf32: let CUDA round float32 products to 10 bits; right for timing, wrong for parity.

    Raises:
        UnverifiedError: no runtime, no such provider, or a model that does not load.
    """
    used = _choose(provider)
    label = printable(model.name)
    options = _options(level, threads)
    try:
        session = _runtime().InferenceSession(
            str(model), options, providers=_providers(used, tf32), enable_fallback=0
        )
    except _failures() as error:
        reason = printable(str(error).replace(str(model), model.name))
        raise UnverifiedError(f"{label} does not load: {reason}") from error
    first = session.get_providers()[0]
    if first != _NAMES[used]:
        raise UnverifiedError(f"{label} runs on {first} although {_NAMES[used]} was asked for")
    return Session(session, used, label)


@cache
def _runtime() -> Any:
    try:
        import onnxruntime  # noqa: TID251 - this file is the one door to the runtime
    except ImportError as error:
        raise UnverifiedError(
            f"ONNX Runtime cannot be imported ({printable(str(error))}): "
            "pip install 'widthfold-onnx[cpu]', or [gpu] for CUDA"
        ) from error
    onnxruntime.set_default_logger_severity(_FATAL)
    return onnxruntime


@cache
def _failures() -> tuple[type[Exception], ...]:
    """The runtime's own exceptions have no common base; its Python layer raises the two others."""
    binding = _runtime().capi.onnxruntime_pybind11_state
    own = [item for item in vars(binding).values() if isinstance(item, type)]
    return (RuntimeError, ValueError, *(item for item in own if issubclass(item, Exception)))


def _options(level: Level, threads: int) -> Any:
    runtime = _runtime()
    levels = runtime.GraphOptimizationLevel
    options = runtime.SessionOptions()
    options.log_severity_level = _FATAL
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.graph_optimization_level = {
        Level.DISABLED: levels.ORT_DISABLE_ALL,
        Level.EXTENDED: levels.ORT_ENABLE_EXTENDED,
        Level.ALL: levels.ORT_ENABLE_ALL,
    }[level]
    return options


def _providers(provider: Provider, tf32: bool) -> list[tuple[str, dict[str, str]]]:
    # cuDNN's default algorithm was measured at a tenth of the speed of its heuristic choice.
    cuda = {"cudnn_conv_algo_search": "HEURISTIC", "use_tf32": str(int(tf32))}
    return [(_NAMES[item], cuda if item is Provider.CUDA else {}) for item in _CHAINS[provider]]


def _choose(provider: Provider) -> Provider:
    if provider is Provider.AUTO:
        return Provider.CUDA if _obstacle(Provider.CUDA) is None else Provider.CPU
    obstacle = _obstacle(provider)
    if obstacle is not None:
        raise UnverifiedError(f"provider {provider} cannot be used: {obstacle}")
    return provider


@cache
def _obstacle(provider: Provider) -> str | None:
    """Why a provider cannot run a single node here, None where it can.

    The list of available providers only says what the runtime was built with, and a session
    falls back to the CPU without a word; so one node is run with that fallback forbidden.
    """
    if provider is Provider.CPU:
        return None
    runtime = _runtime()
    if _NAMES[provider] not in runtime.get_available_providers():
        return f"this ONNX Runtime has no {_NAMES[provider]}; pip install 'widthfold-onnx[gpu]'"
    with contextlib.redirect_stdout(io.StringIO()):  # it prints what it does not find
        runtime.preload_dlls()
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "probe", [value], [result])
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    ).SerializeToString()
    options = _options(Level.DISABLED, threads=1)
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    chain = [name for name in _providers(provider, tf32=False) if name[0] != _NAMES[Provider.CPU]]
    try:
        session = runtime.InferenceSession(model, options, providers=chain, enable_fallback=0)
        session.run(None, {"x": np.ones(1, np.float32)})
    except _failures() as error:
        return _missing_library(provider) or printable(str(error))
    if session.get_providers()[0] != _NAMES[provider]:
        return _missing_library(provider) or "no usable device"
    return None


def _missing_library(provider: Provider) -> str | None:
    """The loader's words on a provider library that does not load, None where it does."""
    folder = Path(_runtime().capi.__file__).parent
    try:
        for library in folder.glob("*onnxruntime_providers_shared.*"):
            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        for library in folder.glob(f"*{_LIBRARIES[provider]}.*"):
            ctypes.CDLL(str(library))
    except OSError as error:
        return printable(str(error).replace(f"{folder}/", ""))
    return None


def _port(meta: Any) -> Port:
    kind = str(meta.type)
    inner = kind.removeprefix("tensor(").removesuffix(")")
    dtype = _DTYPES.get(kind, inner if kind == f"tensor({inner})" else kind)
    dims = tuple(dim if isinstance(dim, int | str) else None for dim in meta.shape)
    return Port(str(meta.name), dtype, dims)


def _arrays(name: str, value: object) -> dict[str, Array]:
    if isinstance(value, np.ndarray | np.generic):
        return {name: np.asarray(value)}
    if isinstance(value, list) and all(isinstance(item, np.ndarray) for item in value):
        return {f"{name}[{index}]": item for index, item in enumerate(value)}
    kind = "an empty optional" if value is None else f"no tensor but a {type(value).__name__}"
    raise UnverifiedError(f"output {printable(name)} is {kind}; it cannot be compared")
