"""Open and run models on ONNX Runtime.

Each failure of the runtime becomes an `UnverifiedError` of one line, and nothing is printed. Ports
are the inputs of a model, with numpy's names of types. A bound session reads inputs that are
already on the device, so that its time includes no copies.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx

from widthfold_onnx.arrays import Array
from widthfold_onnx.errors import NoKernelError, UnverifiedError, UsageError
from widthfold_onnx.model.proto.dims import DimensionKey, declared, symbol_of
from widthfold_onnx.model.proto.walk import all_tensors, required_inputs
from widthfold_onnx.options import Provider, RuntimeOptions, Values
from widthfold_onnx.runtime import library
from widthfold_onnx.runtime.provider_traits import Level, traits_of
from widthfold_onnx.runtime.providers import (
    OFF,
    check_entries,
    check_options,
    entries,
    ranking,
    usable_provider,
)
from widthfold_onnx.text import printable

Feeds = Mapping[str, Array]
R = TypeVar("R", bound=RuntimeOptions)
DEFAULTS = RuntimeOptions()


_DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
}
"""Element types whose names in the runtime and in numpy differ."""


@dataclass(frozen=True)
class Port:
    """One input of a model.

    Attributes:
        name: as in the model.
        dtype: numpy's name of the element type, "string", or the runtime's own words for a type
            that is no tensor, e.g. "seq(tensor(float))".
        dims: sizes, symbols, or None where nothing is known; () for a scalar and for a tensor of
            unknown rank, which the runtime does not tell apart.
        value: all of its elements, or one value for all; () if it is drawn at random.
        limit: exclusive upper bound of its elements if they are indices or sizes; None for data.
    """

    name: str
    dtype: str
    dims: tuple[int | str | None, ...]
    value: tuple[float, ...] = ()
    limit: int | None = None


def ports_of(proto: onnx.ModelProto) -> list[Port]:
    """Return the inputs that a caller must feed, read from the model itself."""
    return [
        Port(value.name, _dtype(value.type.tensor_type.elem_type), declared(value))
        for value in required_inputs(proto)
        if value.type.HasField("tensor_type")
    ]


def _dtype(kind: int) -> str:
    if kind == onnx.TensorProto.STRING:
        return "string"
    return str(onnx.helper.tensor_dtype_to_np_dtype(kind).name)


def port_of(meta: Any, values: Values, index_limits: Mapping[str, int]) -> Port:
    """Convert the runtime's description of an input to a port."""
    kind = str(meta.type)
    inner = kind.removeprefix("tensor(").removesuffix(")")
    dtype = _DTYPES.get(kind, inner if kind == f"tensor({inner})" else kind)
    name = str(meta.name)
    dims, value = tuple(map(_dim, meta.shape)), values.get(name, ())
    return Port(name, dtype, dims, value, index_limits.get(name))


def _dim(dim: object) -> int | str | None:
    if isinstance(dim, str):
        return symbol_of(dim)
    return dim if isinstance(dim, int) and dim >= 0 else None


def arrays_of(name: str, value: object) -> dict[str, Array]:
    """Return one output as arrays; a sequence of tensors gives ``name[0]``, ``name[1]``, ...

    Raises:
        UnverifiedError: it is neither a tensor nor a sequence of tensors.
    """
    if isinstance(value, np.ndarray | np.generic):
        return {name: np.asarray(value)}
    if isinstance(value, list) and all(isinstance(item, np.ndarray) for item in value):
        return {f"{name}[{index}]": item for index, item in enumerate(value)}
    kind = "an empty optional" if value is None else f"no tensor but a {type(value).__name__}"
    raise UnverifiedError(f"output {printable(name)} is {kind}; it cannot be compared")


DeviceArray = Any
"""An array on the device (OrtValue); it may be bound to several sessions."""


@dataclass(frozen=True, eq=False)
class Session:
    """A model that is loaded and ready to run; made by `open_session`.

    Attributes:
        ort_session: session of ONNX Runtime.
        provider: where it runs.
        label: name of the model in messages.
        device: the runtime's name for the kind of device, and its number.
        cases: combinations of values of inputs that choose between parts of the model.
        index_limits: as in `RuntimeOptions`.
        weight_extents: as in `RuntimeOptions`.
    """

    ort_session: Any
    provider: Provider
    label: str
    device: tuple[str, int]
    cases: tuple[Values, ...]
    index_limits: Mapping[str, int]
    weight_extents: Mapping[DimensionKey, int]

    @cached_property
    def outputs(self) -> list[str]:
        """Names of all outputs."""
        return [str(meta.name) for meta in self.ort_session.get_outputs()]

    @cached_property
    def inputs(self) -> list[Port]:
        """The inputs; they have the values of the first case, and the extents that weights fix."""
        metas = self.ort_session.get_inputs()
        ports = [port_of(meta, self.cases[0], self.index_limits) for meta in metas]
        return [replace(port, dims=self._fixed_dims(port)) for port in ports]

    def _fixed_dims(self, port: Port) -> tuple[int | str | None, ...]:
        keys = [(port.name, i) if dim is None else dim for i, dim in enumerate(port.dims)]
        return tuple(
            dim if isinstance(key, int) else self.weight_extents.get(key, dim)
            for key, dim in zip(keys, port.dims, strict=True)
        )

    @property
    def case_sessions(self) -> list[Session]:
        """This session once for each case, with that case alone."""
        return [replace(self, cases=(values,)) for values in self.cases]

    def run(self, feeds: Feeds, seconds: float = math.inf) -> dict[str, Array]:
        """Run once; a sequence of tensors comes back as ``name[0]``, ``name[1]``, ...

        Args:
            feeds: the inputs.
            seconds: time after which the run is stopped between two nodes.

        Raises:
            UnverifiedError: the runtime stopped, or an output is no tensor.
            NoKernelError: the runtime stopped for want of a kernel.
        """
        with self.translated(), library.run_options(seconds) as options:
            values = self.ort_session.run(self.outputs, dict(feeds), options)
        arrays: dict[str, Array] = {}
        for name, value in zip(self.outputs, values, strict=True):
            arrays.update(arrays_of(name, value))
        return arrays

    def bound(self, feeds: Mapping[str, Array | DeviceArray]) -> Callable[[], object]:
        """Upload the feeds, and return a function that runs once on them, for timing.

        Raises:
            UnverifiedError: the feeds do not fit. The function raises it if a run fails.
        """
        if any(isinstance(v, np.ndarray) and v.dtype.kind in "OUS" for v in feeds.values()):
            return partial(self.run, feeds)  # strings have no buffer to bind
        return Bound(self, feeds)

    def uploaded(self, feeds: Mapping[str, Array | DeviceArray]) -> dict[str, DeviceArray]:
        """Copy the feeds to the device; other sessions on it can use them, too.

        Raises:
            UnverifiedError: the device has no memory for them.
        """
        with self.translated():
            return {name: self._upload(value) for name, value in feeds.items()}

    def end_profile(self) -> Path:
        """Stop profiling and return the file that holds the profile."""
        return Path(self.ort_session.end_profiling())

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """Raise exceptions of the runtime in the block as errors of ours."""
        try:
            yield
        except library.failures() as error:
            text = library.error_text(error)
            raise _error_kind(error)(f"{self.label} does not run: {text}") from error

    def _upload(self, value: Array | DeviceArray) -> DeviceArray:
        """Copy an array to the device, unless it is there already."""
        kind = library.runtime().OrtValue
        return value if isinstance(value, kind) else kind.ortvalue_from_numpy(value, *self.device)


class Bound:
    """A callable that runs a session once; outputs stay on the device.

    Args:
        session: the session.
        feeds: arrays, which are copied to the device now, or arrays on the device.
    """

    def __init__(self, session: Session, feeds: Mapping[str, Array | DeviceArray]) -> None:
        self._session = session
        self._reuses_buffers = True
        # Kept, as on the CPU the runtime reads the buffers of these arrays and owns no copy.
        self._inputs = session.uploaded(feeds)
        with session.translated():
            self._binding = session.ort_session.io_binding()
            for name, value in self._inputs.items():
                self._binding.bind_ortvalue_input(name, value)
            self._bind_outputs()

    def _bind_outputs(self) -> None:
        self._binding.clear_binding_outputs()
        for name in self._session.outputs:
            self._binding.bind_output(name, *self._session.device)

    def __call__(self) -> None:
        """Run once, and wait for the end.

        Raises:
            UnverifiedError: the runtime stopped.
        """
        with self._session.translated():
            self._run()
            self._binding.synchronize_outputs()

    def _run(self) -> None:
        """Run once, into the output buffers of the run before where the runtime accepts them.

        It refuses them if an output has another rank than the model declares. Then it allocates new
        ones in each run, as its usual `run` always does.
        """
        if not self._reuses_buffers:
            self._bind_outputs()
        try:
            self._session.ort_session.run_with_iobinding(self._binding)
        except library.failures():
            if not self._reuses_buffers:
                raise
            self._reuses_buffers = False
            self._run()

    def results(self) -> dict[str, DeviceArray]:
        """Return the outputs of the last run, on the device; the next run may overwrite them."""
        return dict(zip(self._session.outputs, self._binding.get_outputs(), strict=True))


def resolved(options: R) -> R:
    """Return the options, with AUTO replaced by the provider that will be used.

    Raises:
        UnverifiedError: no runtime, or the provider cannot be used.
        UsageError: the provider or the runtime does not take the options that were given for it.
    """
    provider = usable_provider(options.provider)
    check_options(provider, options.provider_options)
    check_entries(options.session_options)
    return replace(options, provider=provider)


def open_session(
    model: Path | onnx.ModelProto,
    options: RuntimeOptions = DEFAULTS,
    level: Level = Level.ALL,
    *,
    tf32: bool = False,
    source: Path | None = None,
    name: str = "",
    profile: Path | None = None,
    optimized: Path | None = None,
) -> Session:
    """Load a model; the external data of a file is found because it is opened by path.

    Args:
        model: the file; or a model in memory.
        options: provider, threads, and options that override our defaults; AUTO takes CUDA where a
            CUDA device really runs a node, else the CPU.
        level: the runtime's own optimization level.
        tf32: let CUDA round float32 products to 10 bits unless an option forbids it; right for
            timing, wrong for parity.
        source: the file that a model in memory was read from: its folder holds external data.
            None: there is no such data.
        name: of the model in messages; "" takes the name of the file, or else of the graph.
        profile: prefix of a file into which the runtime writes the time of every node.
        optimized: file into which the runtime writes its optimized model.

    Raises:
        UnverifiedError: no runtime, no such provider, or a model that does not load.
        NoKernelError: a model that does not load for want of a kernel.
        UsageError: `use_tf32` is switched off where float16 is to be timed.
    """
    provider = usable_provider(options.provider)
    if isinstance(model, onnx.ModelProto):
        path, folder = source, None if source is None else source.parent
        label = printable(name or (model.graph.name if source is None else source.name))
    else:
        path, folder, label = model, None, printable(name or model.name)
    if tf32 and options.provider_options.get("use_tf32", "1").lower() in OFF:
        _check_tensor_cores(model, label)
    try:
        session = library.new_session(
            model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model),
            _options(
                level, options.threads, entries(options.session_options, folder), profile, optimized
            ),
            ranking(provider, options.provider_options, options.threads, tf32=tf32),
        )
    except library.failures() as error:
        text = library.error_text(error, path, name)
        raise _error_kind(error)(f"{label} does not load: {text}") from error
    first, expected = session.get_providers()[0], traits_of(provider).name
    if first != expected:
        raise UnverifiedError(f"{label} runs on {first} although {expected} was asked for")
    return Session(
        session,
        provider,
        label,
        _device(provider, options.provider_options),
        options.cases,
        options.index_limits,
        options.weight_extents,
    )


def _device(provider: Provider, options: Mapping[str, str]) -> tuple[str, int]:
    """Return the device of inputs and outputs, as ONNX Runtime names it, and its number."""
    if traits_of(provider).device != "nvidia":
        return "cpu", 0
    return "cuda", int(options.get("device_id", 0))


def _error_kind(error: Exception) -> type[UnverifiedError]:
    return NoKernelError if library.lacks_kernel(error) else UnverifiedError


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
    session_entries: Mapping[str, str],
    profile: Path | None,
    optimized: Path | None,
) -> Any:
    levels = library.runtime().GraphOptimizationLevel
    options = library.quiet_options(session_entries)
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
