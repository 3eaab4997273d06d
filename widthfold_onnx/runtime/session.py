"""The one door to ONNX Runtime: open a model by path, feed it, get arrays back.

The runtime is imported on first use, so that rewriting works without it. Whatever goes wrong
behind this door becomes an `UnverifiedError` of one line, and nothing is printed.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from widthfold_onnx.errors import NoKernelError, UnverifiedError
from widthfold_onnx.options import Provider, VerifyOptions
from widthfold_onnx.runtime.providers import FATAL, NAMES, chain, check_options, choose
from widthfold_onnx.text import printable

Array = npt.NDArray[Any]
Feeds = Mapping[str, Array]

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

    def __init__(self, session: Any, provider: Provider, label: str, device: int) -> None:
        self._session = session
        self._device = device
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
            return lambda: self._plain(feeds)  # strings have no buffer to bind
        runtime = _runtime()
        device = "cpu" if self.provider is Provider.CPU else "cuda"
        with self._stops():
            binding = self._session.io_binding()
            for name, array in feeds.items():
                value = runtime.OrtValue.ortvalue_from_numpy(array, device, self._device)
                binding.bind_ortvalue_input(name, value)
            for name in self.outputs:
                binding.bind_output(name, device, self._device)

        def once() -> None:
            with self._stops():
                self._session.run_with_iobinding(binding)
                binding.synchronize_outputs()

        return once

    def end_profile(self) -> Path:
        """Stop profiling and return the file that holds the profile."""
        return Path(self._session.end_profiling())

    def _plain(self, feeds: Feeds) -> None:
        self.run(feeds)

    @contextlib.contextmanager
    def _stops(self) -> Iterator[None]:
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


def resolved(options: VerifyOptions) -> VerifyOptions:
    """The options with the provider that will be used instead of AUTO.

    Raises:
        UnverifiedError: no runtime, or the provider cannot be used.
        UsageError: the provider does not take the options that were given for it.
    """
    runtime, failures = _runtime(), _failures()
    provider = choose(runtime, failures, options.provider)
    check_options(runtime, failures, provider, options.provider_options)
    return dataclasses.replace(options, provider=provider)


def open_session(
    model: Path,
    provider: Provider = Provider.AUTO,
    level: Level = Level.ALL,
    threads: int = 1,
    *,
    tf32: bool = False,
    provider_options: Mapping[str, str] = MappingProxyType({}),
    profile: Path | None = None,
) -> Session:
    """Load a model; its external data is found because it is opened by path.

    Idle threads sleep instead of spinning: a spinning pool makes times depend on the load.

    Args:
        model: the file.
        provider: AUTO takes CUDA where a CUDA device really runs a node, else the CPU.
        level: the runtime's own optimization level.
        threads: threads inside one operator.
        tf32: let CUDA round float32 products to 10 bits unless an option forbids it; right for
            timing, wrong for parity.
        provider_options: further options of the provider, which win over ours.
        profile: prefix of a file into which the runtime writes the time of every node.

    Raises:
        UnverifiedError: no runtime, no such provider, or a model that does not load.
        NoKernelError: one that does not load for want of a kernel.
    """
    runtime = _runtime()
    used = choose(runtime, _failures(), provider)
    label = printable(model.name)
    options = _options(level, threads)
    if profile is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile)
    try:
        session = runtime.InferenceSession(
            str(model),
            options,
            providers=chain(used, provider_options, tf32=tf32),
            enable_fallback=0,
        )
    except _failures() as error:
        reason = printable(str(error).replace(str(model), model.name))
        missing = isinstance(error, runtime.capi.onnxruntime_pybind11_state.NotImplemented)
        kind = NoKernelError if missing else UnverifiedError
        raise kind(f"{label} does not load: {reason}") from error
    first = session.get_providers()[0]
    if first != NAMES[used]:
        raise UnverifiedError(f"{label} runs on {first} although {NAMES[used]} was asked for")
    return Session(session, used, label, int(provider_options.get("device_id", 0)))


@cache
def _runtime() -> Any:
    try:
        import onnxruntime  # noqa: TID251 - this file is the one door to the runtime
    except ImportError as error:
        raise UnverifiedError(
            f"ONNX Runtime cannot be imported ({printable(str(error))}): "
            "pip install 'widthfold-onnx[cpu]', or [gpu] for CUDA"
        ) from error
    onnxruntime.set_default_logger_severity(FATAL)
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
    options.log_severity_level = FATAL
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.graph_optimization_level = {
        Level.DISABLED: levels.ORT_DISABLE_ALL,
        Level.EXTENDED: levels.ORT_ENABLE_EXTENDED,
        Level.ALL: levels.ORT_ENABLE_ALL,
    }[level]
    return options


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
