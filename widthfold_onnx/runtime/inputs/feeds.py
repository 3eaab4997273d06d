"""Makes random inputs of every element type, for models without stored ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from widthfold_onnx.arrays import Array
from widthfold_onnx.errors import UnverifiedError, UsageError
from widthfold_onnx.options import Shapes
from widthfold_onnx.runtime.inputs.distributions import Distribution, draw
from widthfold_onnx.runtime.sessions.ports import Port
from widthfold_onnx.text import printable

_WORDS = ("fold", "width", "", "unicode \u00e9")


def random_feeds(
    inputs: Sequence[Port],
    seed: int,
    shapes: Shapes,
    kind: Distribution = Distribution.NORMAL,
) -> dict[str, Array]:
    """Return one array per input, the same for the same (seed, input name, kind).

    Floats are of that kind, by default normal: zeros would time faster and hide faults. Integers
    are 0 or 1, which is a valid index wherever two exist; those of 8 bits, which are no indices in
    ONNX, are over their range.

    An input that has a value gets that.

    Args:
        inputs: of the model; overridable initializers keep their own values.
        seed: of the set.
        shapes: the shape of every input, from `find_shapes`.
        kind: how floats are distributed.

    Raises:
        UnverifiedError: an element type that cannot be made up.
        UsageError: a value of another size than its input.
    """
    return {port.name: _random(port, seed, shapes[port.name], kind) for port in inputs}


def _random(port: Port, seed: int, shape: tuple[int, ...], kind: Distribution) -> Array:
    if port.value:
        elements = np.array(port.value)
        if "int" in port.dtype:
            limits = np.iinfo(port.dtype)
            elements = elements.clip(limits.min, limits.max)
        elements = elements.astype(port.dtype)
        if elements.size not in (1, math.prod(shape)):
            size = f"{elements.size} elements where its shape is {list(shape)}"
            raise UsageError(f"--value gives {printable(port.name)} {size}")
        return np.resize(elements, shape)
    generator = np.random.default_rng([seed, *port.name.encode()])
    if port.dtype == "bool":
        return np.asarray(generator.integers(0, 2, shape, np.uint8).astype(np.bool_))
    if port.dtype == "string":
        words = np.array(_WORDS, dtype=object)
        return np.asarray(words[generator.integers(0, len(words), shape)], dtype=object)
    if port.dtype in ("float16", "float32", "float64"):
        return draw(kind, generator, shape).astype(port.dtype)
    if port.dtype in ("int8", "uint8"):
        limits = np.iinfo(port.dtype)
        return np.asarray(generator.integers(limits.min, limits.max, shape, port.dtype, True))
    if port.dtype.removeprefix("u") in ("int16", "int32", "int64"):
        return np.asarray(generator.integers(0, 2, shape)).astype(port.dtype)
    raise UnverifiedError(
        f"input {printable(port.name)} is {printable(port.dtype)}: no random values are made "
        "for that type"
    )
