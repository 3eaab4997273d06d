"""Describes inputs and outputs of a model as the runtime reports them, with numpy's names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from widthfold_onnx.arrays import Array
from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.model.proto.dims import declared, symbol_of
from widthfold_onnx.model.proto.frozen import inputs
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
        value: its elements, or the one element that fills it; none: it is drawn at random.
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
