"""Carried ops that move elements, or act along axes that no fold touches: they are done to both.

Concat and Split are done to labels. What acts along axes is run on integers, and what it returns is
compared bit for bit.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.chain import Mismatch
from widthfold_onnx.evidence.claims import concrete, content, read
from widthfold_onnx.evidence.probe import EXACT_BELOW, LARGEST, Side, run_side
from widthfold_onnx.evidence.step import Step, check_others
from widthfold_onnx.rules.along import SIZES

Array = npt.NDArray[Any]

LONG = 37
"""For an open extent along which an op may act: more than most kernels cover."""


def concat(step: Step) -> None:
    """Move elements: it is run on labels that differ between inputs."""
    if len(step.data) != len(step.before.inputs):
        raise Mismatch("an input is not packed")
    axis = step.integer("axis", 0)
    natural: list[Array] = []
    for claim in step.data.values():
        shape = concrete(claim.shape)
        first = sum(a.size for a in natural)
        natural.append(np.arange(first, first + int(np.prod(shape))).reshape(shape))
    try:
        wanted = step.state.packed(np.concatenate(natural, axis))
        found = np.concatenate([step.state.packed(a) for a in natural], axis)
    except ValueError as error:
        shapes = ", ".join(str(list(array.shape)) for array in natural)
        raise Mismatch(f"inputs of {shapes} cannot be joined, or not packed") from error
    if np.concatenate(natural, axis).shape != step.shape or content(wanted) != content(found):
        raise Mismatch("it joins along a folded axis")


def split(step: Step) -> None:
    """Move elements: it is done to labels, natural and packed."""
    if set(step.data) != {0} or "split" in step.before.attributes:
        raise Mismatch("another input than the first is packed, or its sizes are an attribute")
    shape, axis, count = concrete(step.data[0].shape), step.integer("axis", 0), len(step.results)
    natural = np.arange(math.prod(shape)).reshape(shape)
    named = len(step.before.inputs) > 1 and step.before.inputs[1] is not None
    sizes = step.constants(1) if named else (None, None)
    wanted = _parts(natural, sizes[0], axis, count)
    found = _parts(step.state.packed(natural), sizes[1], axis, count)
    for claim, one, other in zip(step.results, wanted, found, strict=True):
        fits = all(e in (None, size) for e, size in zip(claim.shape, one.shape, strict=True))
        try:
            same = content(step.state.packed(one)) == content(other)
        except ValueError as error:
            raise Mismatch(f"a part of {list(one.shape)} cannot be packed") from error
        if not fits or not same:
            raise Mismatch("it splits along a folded axis")


def _parts(array: Array, sizes: Array | None, axis: int, count: int) -> list[Array]:
    """What a Split makes of an array; without sizes all parts are equal."""
    extent = array.shape[axis] if -array.ndim <= axis < array.ndim else 0
    if sizes is None and extent % count == 0:
        sizes = np.full(count, extent // count)
    if sizes is None or sizes.shape != (count,) or sizes.sum() != extent or sizes.min() < 1:
        raise Mismatch(f"{extent} positions are not split into {count} parts")
    return np.split(array, np.cumsum(sizes)[:-1], axis)


def along(step: Step) -> None:
    """Act along axes: the same node is run on integers, natural and packed."""
    if set(step.data) != {0}:
        raise Mismatch("another input than the first is packed")
    # Extents that a Resize is told are those of the packed tensor: the run shows if they fit.
    check_others(step, but=SIZES if step.before.op_type == "Resize" else None)
    shape = concrete(step.data[0].shape, LONG)
    sides = []
    for document, node in ((step.graph.old, step.before), (step.graph.new, step.after)):
        constants = {v.name or "": read(document, v) for v in node.inputs[1:] if v is not None}
        sides.append(Side([document.message(node)], constants, document.opset, []))
    after = replace(sides[1], reads=step.state, returns=step.state)
    kinds = [a.dtype for a in sides[0].constants.values() if a.dtype.name in EXACT_BELOW]
    data = np.random.default_rng(0).integers(-LARGEST, LARGEST, shape)
    data = data.astype(kinds[0] if kinds and step.before.op_type == "Pad" else np.float32)
    wanted = run_side(sides[0], [], data, step.options)
    try:
        found = run_side(after, [], data, step.options)
        alike = content(after.packed(wanted)) == content(found)
    except UnverifiedError as error:
        raise Mismatch(f"it does not run packed: {error}") from error
    except ValueError as error:
        raise Mismatch(f"a result of {list(wanted.shape)} cannot be packed") from error
    fits = [e in (None, size) for e, size in zip(step.result.shape, wanted.shape, strict=True)]
    if not all(fits) or not alike:
        raise Mismatch("it acts along a folded axis")
