"""Describe the inputs and outputs of a session, and bind inputs on the device.

Ports have numpy's names of types. A bound session reads inputs that lie on the device already, so
its time includes no copies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from widthfold_onnx.arrays import Array
from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.model.proto.dims import declared, symbol_of
from widthfold_onnx.model.proto.walk import inputs
from widthfold_onnx.runtime.sessions import library
from widthfold_onnx.text import printable

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
        dims: sizes, symbols, or None where nothing is known. The runtime shows a scalar and a
            tensor of unknown rank alike, as ().
        value: its elements, or the single element that fills it; none: it is drawn at random.
    """

    name: str
    dtype: str
    dims: tuple[int | str | None, ...]
    value: tuple[float, ...] = ()


def ports_of(proto: onnx.ModelProto) -> list[Port]:
    """Return the inputs that a caller must feed, without the runtime."""
    return [
        Port(value.name, _dtype(value.type.tensor_type.elem_type), declared(value))
        for value in inputs(proto)
        if value.type.HasField("tensor_type")
    ]


def _dtype(kind: int) -> str:
    if kind == onnx.TensorProto.STRING:
        return "string"
    return str(onnx.helper.tensor_dtype_to_np_dtype(kind).name)


def port_of(meta: Any) -> Port:
    """Convert the runtime's description of an input."""
    kind = str(meta.type)
    inner = kind.removeprefix("tensor(").removesuffix(")")
    dtype = _DTYPES.get(kind, inner if kind == f"tensor({inner})" else kind)
    return Port(str(meta.name), dtype, tuple(map(_dim, meta.shape)))


def _dim(dim: object) -> int | str | None:
    if isinstance(dim, str):
        return symbol_of(dim)
    return dim if isinstance(dim, int) and dim >= 0 else None


def arrays_of(name: str, value: object) -> dict[str, Array]:
    """Return one output as arrays; a sequence of tensors gives ``name[0]``, ``name[1]``, ...

    Raises:
        UnverifiedError: it is no tensor.
    """
    if isinstance(value, np.ndarray | np.generic):
        return {name: np.asarray(value)}
    if isinstance(value, list) and all(isinstance(item, np.ndarray) for item in value):
        return {f"{name}[{index}]": item for index, item in enumerate(value)}
    kind = "an empty optional" if value is None else f"no tensor but a {type(value).__name__}"
    raise UnverifiedError(f"output {printable(name)} is {kind}; it cannot be compared")


Placed = Any
"""An array on the device, as the runtime holds it; it may be bound to several sessions."""


class Bound:
    """A callable that runs a session once; outputs stay on the device.

    Args:
        session: of ONNX Runtime.
        feeds: arrays, which are copied to the device now, or what lies there already.
        outputs: names of all outputs.
        device: the runtime's name for the kind, and the number.
        guard: turns all exceptions of the runtime into errors of ours.
    """

    def __init__(
        self,
        session: Any,
        feeds: Mapping[str, Array | Placed],
        outputs: Sequence[str],
        device: tuple[str, int],
        guard: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._session = session
        self._outputs = outputs
        self._device = device
        self._guard = guard
        self._reuses_buffers = True
        with guard():
            self._binding = session.io_binding()
            # On the CPU the runtime reads the buffers of the arrays themselves, and keeps none.
            self._inputs = {name: place(value, device) for name, value in feeds.items()}
            for name, value in self._inputs.items():
                self._binding.bind_ortvalue_input(name, value)
            self._bind_outputs()

    def _bind_outputs(self) -> None:
        self._binding.clear_binding_outputs()
        for name in self._outputs:
            self._binding.bind_output(name, *self._device)

    def __call__(self) -> None:
        """Run once, and wait for the end.

        Raises:
            UnverifiedError: the runtime stopped.
        """
        with self._guard():
            self._run()
            self._binding.synchronize_outputs()

    def _run(self) -> None:
        """Run once; the outputs of the run before are overwritten where the runtime lets us.

        It refuses them if the model declares another rank than its outputs have. Outputs of its own
        it makes whatever the rank, as for every caller of its usual `run`.
        """
        if not self._reuses_buffers:
            self._bind_outputs()
        try:
            self._session.run_with_iobinding(self._binding)
        except library.failures():
            if not self._reuses_buffers:
                raise
            self._reuses_buffers = False
            self._run()

    def results(self) -> dict[str, Placed]:
        """Return the outputs of the last run, on the device; the next run may overwrite them."""
        return dict(zip(self._outputs, self._binding.get_outputs(), strict=True))


def place(value: Array | Placed, device: tuple[str, int]) -> Placed:
    """Copy an array to the device, unless it lies there already."""
    kind = library.runtime().OrtValue
    return value if isinstance(value, kind) else kind.ortvalue_from_numpy(value, *device)
