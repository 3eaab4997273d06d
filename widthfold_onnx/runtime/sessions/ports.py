"""Describes inputs and outputs of a model as the runtime reports them, with numpy's names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from widthfold_onnx.arrays import Array
from widthfold_onnx.errors import UnverifiedError
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


def port_of(meta: Any) -> Port:
    """Convert the runtime's description of an input."""
    kind = str(meta.type)
    inner = kind.removeprefix("tensor(").removesuffix(")")
    dtype = _DTYPES.get(kind, inner if kind == f"tensor({inner})" else kind)
    dims = tuple(dim if isinstance(dim, int | str) else None for dim in meta.shape)
    return Port(str(meta.name), dtype, dims)


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
