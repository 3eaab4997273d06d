"""What a model is fed: random arrays, and the sizes of the dimensions that it leaves open.

Nobody writes down how long an audio input must be. So the original is run at one size after the
other until it does not complain; each try costs milliseconds, since a wrong size stops early.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from widthfold_onnx.errors import UnverifiedError, UsageError
from widthfold_onnx.options import Shapes
from widthfold_onnx.runtime.distributions import Distribution, distribution_of, draw
from widthfold_onnx.runtime.ports import Array, Port
from widthfold_onnx.runtime.session import Session
from widthfold_onnx.runtime.stored import InputSet
from widthfold_onnx.text import printable

Key = str | tuple[str, int]
"""An open dimension: its symbol, or (input, axis) where it has none."""

LADDER = (64, 16, 256, 1, 20, 128, 160, 224, 320, 576, 640, 1024, 4096, 16384, 65536)
"""Sizes to try. 64 first: with 1, padded borders would be all there is to compare."""

MAX_ELEMENTS = 1 << 24
"""Largest input set that is tried without being asked for, in elements over all inputs."""

MAX_ASKED_ELEMENTS = 1 << 40
"""Largest input that a caller may ask for; beyond it numpy cannot even count the bytes."""

ENOUGH = 2000
"""Inputs of so many elements are tried first: a single frame of audio shows and times little."""

SMALL_ELEMENTS = 750_000
"""Largest input set for the second shapes, where a much larger size is tried first."""

BATCHES = {2: 2, 3: 7}
"""By seed: the batch of its set, where the model leaves that open; the others have batch 1."""

_WORDS = ("fold", "width", "", "unicode \u00e9")


@dataclass(frozen=True)
class MadeUp:
    """Input sets that nobody stored.

    Attributes:
        sets: one per seed; the label says how its floats are distributed.
        shapes: of the first set.
        limits: what could not be covered, one line each.
    """

    sets: list[InputSet]
    shapes: Shapes
    limits: list[str]


def made_up(session: Session, fixed: Shapes, count: int, *, varied: bool = True) -> MadeUp:
    """Sets of several distributions, batches and sizes.

    Args:
        session: of the original, at any level.
        fixed: shapes that the caller demands.
        count: how many; five cover all distributions, four all batches, two both sizes.
        varied: several distributions, batches and sizes; otherwise normal numbers only.

    Raises:
        UsageError: as `open_dimensions`.
        UnverifiedError: as `find_shapes`.
    """
    shapes = find_shapes(session, fixed)
    special: dict[int, Shapes] = {}
    limits = []
    if count > 1 and varied:  # they may be long, so one set is enough
        special[1] = other_shapes(session, fixed, shapes) or shapes
    missing = []
    for seed, batch in BATCHES.items() if varied else ():
        if seed < count and any(open_dimensions(session.inputs, fixed).values()):
            found = _with_batch(session, fixed, shapes, batch)
            if found is None:
                missing.append(str(batch))
            else:
                special[seed] = found
    if missing:
        limits.append(f"not compared at batch {' or '.join(missing)}: the original does not run")
    sets = []
    for seed in range(count):
        kind = distribution_of(seed) if varied else Distribution.NORMAL
        feeds = random_feeds(session.inputs, seed, special.get(seed, shapes), kind)
        size = f", batch {BATCHES[seed]}" if varied and seed in BATCHES and seed in special else ""
        sets.append(InputSet(f"seed {seed}, {kind}{size}", feeds, made_up=True))
    return MadeUp(sets, shapes, limits)


def random_feeds(
    inputs: Sequence[Port],
    seed: int,
    shapes: Shapes,
    kind: Distribution = Distribution.NORMAL,
) -> dict[str, Array]:
    """One array per input, the same for the same (seed, input name, kind).

    Floats are of that kind, by default normal: zeros would time faster and hide faults. Integers
    are 0 or 1, which is a valid index wherever two exist.

    Args:
        inputs: of the model; overridable initializers keep their own values.
        seed: of the set.
        shapes: the shape of every input, from `find_shapes`.
        kind: how floats are distributed.

    Raises:
        UnverifiedError: an element type that cannot be made up.
    """
    return {port.name: _random(port, seed, shapes[port.name], kind) for port in inputs}


def _random(port: Port, seed: int, shape: tuple[int, ...], kind: Distribution) -> Array:
    generator = np.random.default_rng([seed, *port.name.encode()])
    if port.dtype == "bool":
        return np.asarray(generator.integers(0, 2, shape, np.uint8).astype(np.bool_))
    if port.dtype == "string":
        words = np.array(_WORDS, dtype=object)
        return np.asarray(words[generator.integers(0, len(words), shape)], dtype=object)
    if port.dtype in ("float16", "float32", "float64"):
        return draw(kind, generator, shape).astype(port.dtype)
    if port.dtype.removeprefix("u") in ("int8", "int16", "int32", "int64"):
        return np.asarray(generator.integers(0, 2, shape)).astype(port.dtype)
    raise UnverifiedError(
        f"input {printable(port.name)} is {printable(port.dtype)}: no random values are made "
        "for that type"
    )


def open_dimensions(inputs: Sequence[Port], fixed: Shapes) -> dict[Key, bool]:
    """The dimensions that neither the model nor the caller gives, and whether they lead.

    Args:
        inputs: of the model.
        fixed: whole shapes by input name; a symbol in one of them is known everywhere.

    Returns:
        For each open dimension, True if it is axis 0 of some input, where the batch is.

    Raises:
        UsageError: a fixed shape for an input that is not there or does not have that form.
    """
    known = _symbols(inputs, fixed)
    found: dict[Key, bool] = {}
    for port in inputs:
        if port.name in fixed:
            continue
        for axis, dim in enumerate(port.dims):
            key = _key(port, axis)
            if not isinstance(dim, int) and key not in known:
                found[key] = found.get(key, False) or axis == 0
    return found


def find_shapes(session: Session, fixed: Shapes) -> Shapes:
    """The first shapes with which the model runs; the whole of them, for every input.

    Args:
        session: of the original, at any level.
        fixed: shapes that the caller demands.

    Raises:
        UsageError: as `open_dimensions`.
        UnverifiedError: no try ran.
    """
    opened = open_dimensions(session.inputs, fixed)
    found, _ = _first(session, fixed, _small_batch(opened), least=ENOUGH)
    if found is None:
        alike = (dict.fromkeys(opened, size) for size in LADDER)
        found, failure = _first(session, fixed, itertools.chain(_small_batch(opened), alike))
    if found is None:
        raise UnverifiedError(
            f"no random input was found that runs ({failure}); "
            "pass --input-shape NAME:SIZE,... or --inputs"
        )
    return found


def assumed_shapes(inputs: Sequence[Port], fixed: Shapes) -> Shapes:
    """Shapes at batch 1, for a model that is not run.

    Args:
        inputs: of the model.
        fixed: shapes that the caller demands.

    Raises:
        UsageError: as `open_dimensions`, or another dimension than a batch is open.
    """
    opened = open_dimensions(inputs, fixed)
    for port in inputs:
        if any(not opened.get(_key(port, axis), True) for axis in range(len(port.dims))):
            raise UsageError(
                f"input {printable(port.name)} has open dimensions, and nothing is run to find "
                f"them out; pass --input-shape {printable(port.name)}:SIZE,..."
            )
    sizes = _symbols(inputs, fixed) | dict.fromkeys(opened, 1)
    return {port.name: _shape(port, fixed, sizes) for port in inputs}


def other_shapes(session: Session, fixed: Shapes, found: Shapes) -> Shapes | None:
    """Shapes with other sizes for the open dimensions, None where none is open or none runs.

    A rewrite that bakes one size in passes at that size, so a second one is compared as well.
    """
    opened = open_dimensions(session.inputs, fixed)
    sizes = _open_sizes(session, opened, found)
    long, _ = _first(session, fixed, _grown(sizes, opened), most=SMALL_ELEMENTS)
    if long is not None:
        return long
    double = {key: size * 2 for key, size in sizes.items()}
    tries = (item for item in (double, _batched(sizes, opened)) if item != sizes)
    return _first(session, fixed, tries)[0]


def _with_batch(session: Session, fixed: Shapes, found: Shapes, batch: int) -> Shapes | None:
    """The found shapes with another batch, None where the model does not run so."""
    opened = open_dimensions(session.inputs, fixed)
    sizes = _open_sizes(session, opened, found)
    wanted = {key: batch if opened[key] else size for key, size in sizes.items()}
    return _first(session, fixed, [wanted])[0]


def _open_sizes(session: Session, opened: Mapping[Key, bool], found: Shapes) -> dict[Key, int]:
    return {
        key: found[port.name][axis]
        for port in session.inputs
        for axis in range(len(port.dims))
        if (key := _key(port, axis)) in opened
    }


def _batched(sizes: Mapping[Key, int], opened: Mapping[Key, bool]) -> dict[Key, int]:
    return {key: size * 3 if opened[key] else size for key, size in sizes.items()}


def _grown(sizes: Mapping[Key, int], opened: Mapping[Key, bool]) -> Iterator[dict[Key, int]]:
    """Much longer, odd before even (what divides by nothing shows more), batch 3 before 1."""
    if all(opened.values()):
        return
    for growth in (16, 4, 2):
        for cut in (1, 0):
            long = {
                key: size if opened[key] else size * growth - cut for key, size in sizes.items()
            }
            yield _batched(long, opened)
            if any(opened.values()):
                yield long


def _key(port: Port, axis: int) -> Key:
    dim = port.dims[axis]
    return dim if isinstance(dim, str) else (port.name, axis)


def _symbols(inputs: Sequence[Port], fixed: Shapes) -> dict[Key, int]:
    """Sizes of the symbols that fixed shapes settle."""
    ports = {port.name: port for port in inputs}
    known: dict[Key, int] = {}
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
            expected = dim if isinstance(dim, int) else known.setdefault(dim, size)
            if expected != size:
                raise UsageError(
                    f"--input-shape gives {printable(name)} a size {size} where {expected} holds"
                )
    return known


def _small_batch(opened: Mapping[Key, bool]) -> Iterator[dict[Key, int]]:
    """Sizes in the order of trying: batch 1 and the same size elsewhere, then one of them long."""
    rest = [key for key, leads in opened.items() if not leads]
    for size in LADDER:
        yield {key: 1 if leads else size for key, leads in opened.items()}
        for long in rest[:4]:
            yield {key: size if key == long else 1 for key in opened}


def _first(
    session: Session,
    fixed: Shapes,
    candidates: Iterable[dict[Key, int]],
    *,
    least: int = 0,
    most: int = MAX_ELEMENTS,
) -> tuple[Shapes | None, str]:
    """The first candidate that runs, else the runtime's words on the first that did not."""
    known = _symbols(session.inputs, fixed)
    failure = ""
    seen: set[tuple[tuple[int, ...], ...]] = set()
    for candidate in candidates:
        sizes = known | candidate
        shapes = {port.name: _shape(port, fixed, sizes) for port in session.inputs}
        mark = tuple(shapes.values())
        elements = sum(map(math.prod, mark))
        if mark in seen or (candidate and not least <= elements <= most):
            continue
        seen.add(mark)
        feeds = random_feeds(session.inputs, 0, shapes)
        try:
            session.run(feeds)
        except UnverifiedError as error:
            failure = failure or str(error)
        else:
            return shapes, ""
    return None, failure


def _shape(port: Port, fixed: Shapes, sizes: Mapping[Key, int]) -> tuple[int, ...]:
    if port.name in fixed:
        return fixed[port.name]
    return tuple(
        dim if isinstance(dim, int) else sizes[_key(port, axis)]
        for axis, dim in enumerate(port.dims)
    )
