"""Opens and runs models on ONNX Runtime.

Each of its failures becomes an `UnverifiedError` of one line, and nothing is printed.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx

from widthfold_onnx.arrays import Array
from widthfold_onnx.errors import NoKernelError, UnverifiedError, UsageError
from widthfold_onnx.model.proto.walk import all_tensors
from widthfold_onnx.options import Provider, RuntimeOptions, Values
from widthfold_onnx.runtime.sessions import library
from widthfold_onnx.runtime.sessions.descriptions import Level as Level
from widthfold_onnx.runtime.sessions.descriptions import description_of
from widthfold_onnx.runtime.sessions.ports import Bound, Placed, Port, arrays_of, place, port_of
from widthfold_onnx.runtime.sessions.providers import OFF, chain, check_options, choose
from widthfold_onnx.runtime.sessions.session_options import check_entries, entries
from widthfold_onnx.text import printable

Feeds = Mapping[str, Array]
R = TypeVar("R", bound=RuntimeOptions)
DEFAULTS = RuntimeOptions()


class Session:
    """A model that is loaded and ready to run; made by `open_session`."""

    def __init__(
        self,
        session: Any,
        provider: Provider,
        label: str,
        chosen: Mapping[str, str],
        cases: tuple[Values, ...],
    ) -> None:
        self._session = session
        on_cuda = description_of(provider).device == "nvidia"
        self._device = ("cuda", int(chosen.get("device_id", 0))) if on_cuda else ("cpu", 0)
        self._label = label
        self.provider = provider
        self._ports = [port_of(meta) for meta in session.get_inputs()]
        self._cases = cases
        self.outputs = [str(meta.name) for meta in session.get_outputs()]

    @property
    def inputs(self) -> list[Port]:
        """The inputs, with the first combination of values."""
        return [
            dataclasses.replace(port, value=self._cases[0].get(port.name, ()))
            for port in self._ports
        ]

    @property
    def cases(self) -> list[Session]:
        """This session with each combination of values of its inputs."""
        sessions = [copy.copy(self) for _ in self._cases]
        for session, values in zip(sessions, self._cases, strict=True):
            session._cases = (values,)
        return sessions

    def run(self, feeds: Feeds, seconds: float = math.inf) -> dict[str, Array]:
        """Run once; a sequence of tensors comes back as ``name[0]``, ``name[1]``, ...

        Args:
            feeds: the inputs.
            seconds: time after which the run is stopped between two nodes.

        Raises:
            UnverifiedError: the runtime stopped, or an output is no tensor.
        """
        with self._stops(), library.run_options(seconds) as options:
            values = self._session.run(self.outputs, dict(feeds), options)
        arrays: dict[str, Array] = {}
        for name, value in zip(self.outputs, values, strict=True):
            arrays.update(arrays_of(name, value))
        return arrays

    def bound(self, feeds: Mapping[str, Array | Placed]) -> Callable[[], object]:
        """Return a call that runs once on inputs that lie on the device already, for timing.

        Raises:
            UnverifiedError: the feeds do not fit; the call raises it where a run stops.
        """
        if any(isinstance(v, np.ndarray) and v.dtype.kind in "OUS" for v in feeds.values()):
            return partial(self.run, feeds)  # strings have no buffer to bind
        return Bound(self._session, feeds, self.outputs, self._device, self._stops)

    def placed(self, feeds: Feeds) -> dict[str, Placed]:
        """Copy the feeds to the device, once for all sessions there.

        Raises:
            UnverifiedError: there is no room.
        """
        with self._stops():
            return {name: place(v, self._device) for name, v in feeds.items()}

    def end_profile(self) -> Path:
        """Stop profiling and return the file that holds the profile."""
        return Path(self._session.end_profiling())

    @contextlib.contextmanager
    def _stops(self) -> Iterator[None]:
        try:
            yield
        except library.failures() as error:
            raise UnverifiedError(f"{self._label} does not run: {library.words(error)}") from error


def runtime_version() -> str:
    """Return the version of the installed ONNX Runtime.

    Raises:
        UnverifiedError: it is not installed.
    """
    return str(library.runtime().__version__)


def resolved(options: R) -> R:
    """Return the options, with AUTO replaced by the provider that will be used.

    Raises:
        UnverifiedError: no runtime, or the provider cannot be used.
        UsageError: the provider or the runtime does not take the options that were given for it.
    """
    provider = choose(options.provider)
    check_options(provider, options.provider_options)
    check_entries(options.session_options)
    return dataclasses.replace(options, provider=provider)


def open_session(
    model: Path | onnx.ModelProto,
    how: RuntimeOptions = DEFAULTS,
    level: Level = Level.ALL,
    *,
    tf32: bool = False,
    origin: Path | None = None,
    profile: Path | None = None,
    optimized: Path | None = None,
) -> Session:
    """Load a model; the external data of a file is found because it is opened by path.

    Args:
        model: the file; or a model in memory.
        how: provider, threads and options, which win over ours; AUTO takes CUDA where a CUDA device
            really runs a node, else the CPU.
        level: the runtime's own optimization level.
        tf32: let CUDA round float32 products to 10 bits unless an option forbids it; right for
            timing, wrong for parity.
        origin: the file that a model in memory was read from: its folder holds external data, and
            messages name it. None: there is no such data, and they name the graph.
        profile: prefix of a file into which the runtime writes the time of every node.
        optimized: file into which the runtime writes the model that it made of this one.

    Raises:
        UnverifiedError: no runtime, no such provider, or a model that does not load.
        NoKernelError: a model that does not load for want of a kernel.
        UsageError: `use_tf32` is switched off where float16 is to be timed.
    """
    runtime = library.runtime()
    used = choose(how.provider)
    if isinstance(model, onnx.ModelProto):
        path, name = origin, model.graph.name if origin is None else origin.name
        folder = None if origin is None else origin.parent
    else:
        path, name, folder = model, model.name, None
    label = printable(name)
    if tf32 and how.provider_options.get("use_tf32", "1").lower() in OFF:
        _check_tensor_cores(model, label)
    try:
        session = library.new_session(
            model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model),
            _options(level, how.threads, entries(how.session_options, folder), profile, optimized),
            chain(used, how.provider_options, how.threads, tf32=tf32),
        )
    except library.failures() as error:
        missing = isinstance(error, runtime.capi.onnxruntime_pybind11_state.NotImplemented)
        kind = NoKernelError if missing else UnverifiedError
        raise kind(f"{label} does not load: {library.words(error, path)}") from error
    first, expected = session.get_providers()[0], description_of(used).name
    if first != expected:
        raise UnverifiedError(f"{label} runs on {first} although {expected} was asked for")
    return Session(session, used, label, how.provider_options, how.cases)


def _check_tensor_cores(model: Path | onnx.ModelProto, label: str) -> None:
    """Refuse to time float16 at use_tf32=0.

    The option deselects all tensor cores, whatever the type (ONNX Runtime, cuda/nn/conv.cc).
    """
    if isinstance(model, Path):
        model = onnx.load(model, "protobuf", load_external_data=False)
    if any(tensor.data_type == onnx.TensorProto.FLOAT16 for tensor in all_tensors(model)):
        raise UsageError(
            f"use_tf32=0 takes the tensor cores from the float16 layers of {label} as well; "
            "time them without it"
        )


def _options(
    level: Level,
    threads: int,
    chosen: Mapping[str, str],
    profile: Path | None,
    optimized: Path | None,
) -> Any:
    levels = library.runtime().GraphOptimizationLevel
    options = library.quiet_options(chosen)
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = {
        Level.DISABLED: levels.ORT_DISABLE_ALL,
        Level.EXTENDED: levels.ORT_ENABLE_EXTENDED,
        Level.ALL: levels.ORT_ENABLE_ALL,
    }[level]
    if profile is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile)
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
    return options
