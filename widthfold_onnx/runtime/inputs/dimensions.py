"""Finds the dimensions that a model leaves open, and its shapes at given sizes of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from widthfold_onnx.errors import UsageError
from widthfold_onnx.options import Shapes, Sizes
from widthfold_onnx.results import AssumedSizes
from widthfold_onnx.runtime.sessions.ports import Port
from widthfold_onnx.text import printable

Key = str | tuple[str, int]
"""An open dimension: its symbol, or (input, axis) where it has none."""

MAX_ASKED_ELEMENTS = 1 << 40
"""Largest input that a caller may ask for; beyond it numpy cannot even count the bytes."""


class Dimensions:
    """The dimensions that neither model nor caller fixes.

    Args:
        inputs: of the model; several elements of a value are the extent of an input of one axis.
        fixed: whole shapes by input name, which the caller demands; a symbol in one of them is
            known everywhere.

    Attributes:
        dims: of every input by name: a size, or the key of an open dimension.
        opened: for each open dimension, True if it is axis 0 of some input, where the batch is.

    Raises:
        UsageError: a fixed shape for an input that is not there or does not have that form.
    """

    def __init__(self, inputs: Sequence[Port], fixed: Shapes) -> None:
        valued = {p.name: (len(p.value),) for p in inputs if len(p.value) > 1 and len(p.dims) == 1}
        fixed = {**valued, **fixed}
        symbols = _symbols(inputs, fixed)
        self.dims: dict[str, Sequence[int | Key]] = {
            port.name: fixed[port.name]
            if port.name in fixed
            else [symbols.get(key, key) for key in _keys(port)]
            for port in inputs
        }
        self.opened: dict[Key, bool] = {}
        for dims in self.dims.values():
            for axis, dim in enumerate(dims):
                if not isinstance(dim, int):
                    self.opened[dim] = self.opened.get(dim, False) or axis == 0

    def shapes(self, sizes: Mapping[Key, int]) -> Shapes:
        """Return the whole shapes of all inputs at these sizes of the open dimensions."""
        return {
            name: tuple(dim if isinstance(dim, int) else sizes[dim] for dim in dims)
            for name, dims in self.dims.items()
        }

    @property
    def open_inputs(self) -> dict[str, list[str]]:
        """The open dimensions by input: the symbol of each, or its axis where it has none."""
        return {
            name: names
            for name, dims in self.dims.items()
            if (
                names := [
                    k if isinstance(k, str) else f"axis {k[1]}"
                    for k in dims
                    if not isinstance(k, int)
                ]
            )
        }

    def sizes(self, shapes: Shapes) -> dict[Key, int]:
        """Return the sizes of the open dimensions in whole shapes."""
        return {
            dim: size
            for name, dims in self.dims.items()
            for dim, size in zip(dims, shapes[name], strict=True)
            if not isinstance(dim, int)
        }


def assumed_sizes(inputs: Sequence[Port], fixed: Sizes, sizes: Sizes) -> AssumedSizes | None:
    """Describe the assumed sizes; None if nothing was.

    Args:
        inputs: of the model.
        fixed: sizes that the caller demands.
        sizes: whole shapes of all inputs.
    """
    names = Dimensions(inputs, fixed[0]).open_inputs
    if not names or not sizes:
        return None
    shapes = [{name: list(each[name]) for name in names} for each in sizes]
    return AssumedSizes(open=names, sizes=shapes)


def assumed_shapes(inputs: Sequence[Port], fixed: Shapes) -> Shapes:
    """Return shapes at batch 1, for a model that is not run.

    Args:
        inputs: of the model.
        fixed: shapes that the caller demands.

    Raises:
        UsageError: as `Dimensions`, or another dimension than a batch is open.
    """
    dims = Dimensions(inputs, fixed)
    for name, own in dims.dims.items():
        if not all(isinstance(dim, int) or dims.opened[dim] for dim in own):
            raise UsageError(
                f"input {printable(name)} has open dimensions, and nothing is run to find "
                f"them out; pass --input-shape {printable(name)}:SIZE,..."
            )
    return dims.shapes(dict.fromkeys(dims.opened, 1))


def _keys(port: Port) -> list[int | Key]:
    return [(port.name, axis) if dim is None else dim for axis, dim in enumerate(port.dims)]


def _symbols(inputs: Sequence[Port], fixed: Shapes) -> dict[int | Key, int]:
    """Return the sizes of the symbols that fixed shapes determine."""
    ports = {port.name: port for port in inputs}
    sizes: dict[int | Key, int] = {}
    for name, shape in fixed.items():
        port = ports.get(name)
        if port is None:
            raise UsageError(
                f"--input-shape names {printable(name)}, which is no input; there are: "
                f"{', '.join(printable(item) for item in ports) or 'none'}"
            )
        if port.dims and len(port.dims) != len(shape):
            raise UsageError(
                f"--input-shape gives {printable(name)} {len(shape)} dimensions; "
                f"the model has {len(port.dims)}"
            )
        if math.prod(shape) > MAX_ASKED_ELEMENTS:
            raise UsageError(f"--input-shape gives {printable(name)} more elements than memory has")
        for dim, size in zip(port.dims, shape, strict=bool(port.dims)):
            if dim is None:
                continue
            if isinstance(dim, int):
                if dim != size:
                    raise UsageError(
                        f"--input-shape gives {printable(name)} a size {size} where {dim} holds"
                    )
            elif sizes.setdefault(dim, size) != size:
                raise UsageError(
                    f"{printable(name)} has a size {size} where {printable(dim)} is {sizes[dim]}: "
                    "--input-shape and --inputs give one size to each name of a dimension"
                )
    return sizes
