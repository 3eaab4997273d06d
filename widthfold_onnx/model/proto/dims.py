"""Read and write the extents that a graph declares, and find the dimensions that it leaves open."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count
from typing import Self

import onnx

from widthfold_onnx.arrays import Dims
from widthfold_onnx.errors import UsageError
from widthfold_onnx.text import printable

_ANONYMOUS = re.compile(r"|\?|-1|None|unk__\d+")
"""Names that exporters give to every dimension without a name: two of them may differ in size."""


DimensionKey = str | tuple[str, int]
"""An open dimension: its symbol, or the input and the axis of one without a symbol."""


@dataclass(frozen=True)
class Dimensions:
    """The dimensions of the inputs of a model; some are open.

    Attributes:
        by_input: of every input by name: an extent, or the key of an open dimension.
    """

    by_input: Mapping[str, Sequence[int | DimensionKey]]

    @classmethod
    def of(
        cls,
        declared_dims: Mapping[str, Sequence[int | str | None]],
        shapes: Mapping[str, Sequence[int]],
    ) -> Self:
        """Return the dimensions of inputs.

        Args:
            declared_dims: of every input by name (`declared`).
            shapes: whole shapes of some inputs; the extent of a symbol is known everywhere.
        """
        unsized = cls(
            {
                name: [(name, axis) if dim is None else dim for axis, dim in enumerate(dims)]
                for name, dims in declared_dims.items()
            }
        )
        sized = unsized.fixed(unsized.extents(shapes))
        return cls({name: shapes.get(name, dims) for name, dims in sized.by_input.items()})

    def fixed(self, extents: Mapping[DimensionKey, int]) -> Self:
        """Return the dimensions with these extents instead of open ones."""
        return type(self)(
            {
                name: [dim if isinstance(dim, int) else extents.get(dim, dim) for dim in dims]
                for name, dims in self.by_input.items()
            }
        )

    @cached_property
    def open_dims(self) -> tuple[DimensionKey, ...]:
        """The open dimensions, each once."""
        dims = chain.from_iterable(self.by_input.values())
        return tuple(dict.fromkeys(dim for dim in dims if not isinstance(dim, int)))

    @cached_property
    def batch_dims(self) -> tuple[DimensionKey, ...]:
        """The open dimensions that are axis 0 of some input, where the batch is."""
        leading = {dims[0] for dims in self.by_input.values() if dims}
        return tuple(dim for dim in self.open_dims if dim in leading)

    @cached_property
    def only_batch_dims(self) -> tuple[DimensionKey, ...]:
        """The dimensions of the batch that are axis 0 of every input that has them.

        The length of a sequence is axis 0 of a mask, too.
        """
        inner = set(chain.from_iterable(dims[1:] for dims in self.by_input.values()))
        return tuple(dim for dim in self.batch_dims if dim not in inner)

    def besides(self, dims: Collection[DimensionKey]) -> tuple[DimensionKey, ...]:
        """Return the other open dimensions."""
        return tuple(dim for dim in self.open_dims if dim not in dims)

    @property
    def open_inputs(self) -> dict[str, list[str]]:
        """The open dimensions by input: the symbol of each, or its axis where it has none."""
        names = {
            name: [k if isinstance(k, str) else f"axis {k[1]}" for k in dims if k in self.open_dims]
            for name, dims in self.by_input.items()
        }
        return {name: dims for name, dims in names.items() if dims}

    def extents(self, shapes: Mapping[str, Sequence[int]]) -> dict[DimensionKey, int]:
        """Return the extents of open dimensions in whole shapes of inputs."""
        return {
            dim: extent
            for name, shape in shapes.items()
            for dim, extent in zip(self.by_input.get(name, ()), shape, strict=False)
            if not isinstance(dim, int)
        }

    def shapes(self, extents: Mapping[DimensionKey, int]) -> dict[str, tuple[int, ...]]:
        """Return the whole shapes of all inputs at these extents of the open dimensions."""
        return {
            name: tuple(dim if isinstance(dim, int) else extents[dim] for dim in dims)
            for name, dims in self.by_input.items()
        }


_WAYS: tuple[Callable[[int], Iterable[int]], ...] = (
    count,
    lambda n: chain((n >> power for power in range(n.bit_length())), count(2 * n, max(n, 1))),
    lambda n: count(n, max(n, 1)),
)
"""Three ways to change an extent: each lists candidates, of which the first free one is taken."""


def apart(extents: Mapping[DimensionKey, int]) -> list[dict[DimensionKey, int]]:
    """Return three sets of extents, in each of which all dimensions differ.

    A model that mistakes one dimension for another is right only where both are equal. Equal
    extents become different by 1, by halving, or as multiples: a model may not accept each set.

    >>> apart({"h": 64, "w": 64})
    [{'h': 64, 'w': 65}, {'h': 64, 'w': 32}, {'h': 64, 'w': 128}]
    """
    results: list[dict[DimensionKey, int]] = []
    for candidates in _WAYS:
        result: dict[DimensionKey, int] = {}
        for dim, extent in extents.items():
            result[dim] = next(n for n in candidates(extent) if n not in result.values())
        results.append(result)
    return results


def probe_extents(dims: Iterable[DimensionKey]) -> dict[DimensionKey, int]:
    """Return extents to infer with, which runs nothing; few of their sums and products are equal.

    >>> probe_extents(["h", "w"])
    {'h': 1009, 'w': 2022}
    """
    return dict(zip(dims, count(1009, 1013), strict=False))


def symbol_of(name: str) -> str | None:
    """Return the name of an open dimension, None if it is anonymous.

    >>> symbol_of("height"), symbol_of("unk__12")
    ('height', None)
    """
    return None if _ANONYMOUS.fullmatch(name) else name


def dims_of(value: onnx.ValueInfoProto) -> Dims | None:
    """Return the declared extents; a symbol, a missing or a negative dimension is None."""
    return dims_of_type(value.type)


def dims_of_type(kind: onnx.TypeProto) -> Dims | None:
    """Return the extents of a type; a symbol, a missing or a negative dimension is None."""
    if not kind.tensor_type.HasField("shape"):
        return None
    return tuple(
        d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else None
        for d in kind.tensor_type.shape.dim
    )


def declare(inputs: Iterable[onnx.ValueInfoProto], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Declare sizes instead of the open extents of inputs, by the names of the inputs."""
    for value in inputs:
        tensor = value.type.tensor_type
        dims = dims_of(value)
        shape = shapes.get(value.name)
        if shape is None or (dims is not None and len(dims) != len(shape)):
            continue  # a shape that does not fit is refused where it is planned with
        for axis, size in enumerate(shape):
            if dims is None:
                tensor.shape.dim.add().dim_value = size
            elif dims[axis] is None:
                tensor.shape.dim[axis].dim_value = size


def declared(value: onnx.ValueInfoProto) -> tuple[int | str | None, ...]:
    """Return the declared extents with the names of open ones; None where one is anonymous.

    >>> declared(onnx.helper.make_tensor_value_info("x", 1, [1, "height", "?", None]))
    (1, 'height', None, None)
    """
    dims, extents = value.type.tensor_type.shape.dim, dims_of(value) or ()
    return tuple(
        symbol_of(dim.dim_param) if extent is None else extent
        for dim, extent in zip(dims, extents, strict=True)
    )


MAX_INPUT_ELEMENTS = 1 << 40
"""Elements of the largest input that a caller may name; numpy cannot count the bytes of more."""


def check_shapes(
    declared_dims: Mapping[str, Sequence[int | str | None] | None],
    shapes: Mapping[str, Sequence[int]],
) -> None:
    """Check that shapes of a caller fit the inputs, and give one extent to each symbol.

    Args:
        declared_dims: by input, as `declared` returns them; None where the rank is not known.
        shapes: whole shapes by input.

    Raises:
        UsageError: a shape does not fit.
    """
    extents: dict[str, int] = {}
    for name, shape in shapes.items():
        if name not in declared_dims:
            names = ", ".join(map(printable, declared_dims)) or "none"
            raise UsageError(
                f"--input-shape names {printable(name)}, which is no input; there are: {names}"
            )
        if math.prod(shape) > MAX_INPUT_ELEMENTS:
            raise UsageError(f"--input-shape gives {printable(name)} more elements than memory has")
        dims = declared_dims[name]
        if dims is None:
            continue
        if len(dims) != len(shape) or any(
            isinstance(dim, int) and dim != extent for dim, extent in zip(dims, shape, strict=True)
        ):
            raise UsageError(
                f"--input-shape: {printable(name)} is declared {_shown(dims)}, not {_shown(shape)}"
            )
        for dim, extent in zip(dims, shape, strict=True):
            if isinstance(dim, str) and extents.setdefault(dim, extent) != extent:
                raise UsageError(
                    f"{printable(name)} has a size {extent} where {printable(dim)} is "
                    f"{extents[dim]}: --input-shape and --inputs give one size to each name of a "
                    "dimension"
                )


def _shown(dims: Sequence[int | str | None]) -> str:
    """Show extents as `--input-shape` writes them; "?" is an open one without a name."""
    return ",".join("?" if dim is None else printable(str(dim)) for dim in dims) or "a scalar"
