"""Put the folded operation and its moves in the place of a layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from widthfold_onnx.algebra.axis import ConvAxis, FoldedAxis
from widthfold_onnx.algebra.channels import Grouping, Regrouping, most_groups, regroup_weight
from widthfold_onnx.algebra.conv import ConvFold
from widthfold_onnx.algebra.packing import Step, after
from widthfold_onnx.arrays import Array
from widthfold_onnx.mlir import library as mlir
from widthfold_onnx.mlir.layers import (
    CONVOLUTIONS,
    MATMUL,
    ORDER,
    Layer,
    numbers_of,
    result_axes,
    to_canonical,
)
from widthfold_onnx.mlir.moves import dense, empty, inverted, moved, padded, shape_of
from widthfold_onnx.model.proto.dims import Dims
from widthfold_onnx.rewrite.parameters import folded_vector, folded_weight
from widthfold_onnx.rules.forms.form import Reformulation
from widthfold_onnx.rules.match.site import LinearSite

FOLDED = {
    (1, False): ("conv_1d_ncw_fcw", "conv_1d_nwc_wcf"),
    (2, False): ("conv_2d_nchw_fchw", "conv_2d_nhwc_hwcf"),
    (2, True): ("conv_2d_ngchw_gfchw", "conv_2d_nhwgc_gfhwc"),
}
"""By spatial axes and whether there are groups: the operation, and the channels-last one."""

DEPTHWISE = ("depthwise_conv_2d_nchw_chw", "depthwise_conv_2d_nhwc_hwc")
"""The same where every group has one channel on both sides."""

PURE = ("arith.constant", "tensor.empty", "tensor.pad", "linalg.broadcast", "linalg.fill")
"""Operations that are removed where nothing reads them any more."""


@dataclass(frozen=True, eq=False)
class Folded:
    """The operation that a layer becomes.

    Attributes:
        kind: its name in `CONVOLUTIONS`, or `MATMUL`.
        axes: letters of data and result; none for a product.
        data: extents of its data, before it is padded.
        weight: its weight.
        result: extents of its result.
        channels: extents of the axes of the result that make up its output channels, by axis.
        lifted: axes of extent 1 before the positions: linalg has groups along two axes only.
        window: the folded axes, by axis of the data.
    """

    kind: str
    axes: tuple[str, str]
    data: Dims
    weight: Array
    result: Dims
    channels: Mapping[int, int]
    lifted: int
    window: Mapping[int, FoldedAxis]

    @property
    def attributes(self) -> dict[str, list[int]]:
        """Strides and dilations of a convolution."""
        if self.kind == MATMUL:
            return {}
        units, axes = [1] * self.lifted, self.window.values()
        return {
            "strides": units + [axis.stride for axis in axes],
            "dilations": units + [axis.dilation for axis in axes],
        }


def replace_layer(
    layer: Layer, site: LinearSite, form: Reformulation, *, groups: bool = False
) -> None:
    """Replace a layer by the folded operation between its moves.

    Args:
        layer: the operation.
        site: how it was read.
        form: the form to put in its place.
        groups: make groups of a weight that is block-diagonal.
    """
    op, block = layer.op, layer.op.block
    start, end = shape_of(layer.data), shape_of(op.result)
    folding = (*to_canonical(layer.axes[0], start), *form.folding)
    back = cast("tuple[Step, ...]", form.unfolding)  # no form of a factor adds results of taps
    unfolding = (*back, *inverted(end, to_canonical(result_axes(layer.axes[0]), end)))
    folded = _folded(layer, site, form.fold, after(start, folding), groups=groups)
    opening = inverted(folded.data, to_canonical(folded.axes[0], folded.data, folded.lifted))
    closing = to_canonical(folded.axes[1], folded.result, folded.lifted)
    with mlir.ir.InsertionPoint(op), op.location:
        pads = {i: (axis.pad_begin, axis.pad_end) for i, axis in folded.window.items()}
        data = padded(moved(layer.data, (*folding, *opening)), pads)
        weight = dense(folded.weight)
        new = getattr(mlir.linalg, folded.kind)(
            *((data, weight) if layer.right else (weight, data)),
            outs=[_init(layer, site, form.fold, folded, (*closing, *unfolding))],
            **folded.attributes,
        )
        op.result.replace_all_uses_with(moved(new, (*closing, *unfolding)))
    op.erase()
    for other in reversed(list(block.operations)):  # readers stand behind their operands
        if other.operation.name in PURE and not any(list(r.uses) for r in other.results):
            other.operation.erase()


def _folded(
    layer: Layer, site: LinearSite, fold: ConvFold, packed: Dims, *, groups: bool
) -> Folded:
    """Return the operation for data of the extents [N, C, *spatial], or of a product's."""
    weight = folded_weight(site, site.stored(), fold)
    if layer.kind == MATMUL:
        axis = 1 if layer.right else 0
        result = tuple(weight.shape[i] if i == axis else e for i, e in enumerate(packed))
        return Folded(MATMUL, ("", ""), packed, weight, result, {axis: weight.shape[axis]}, 0, {})
    group, rank = fold.new_group, len(packed) - 2
    if groups:
        grouping = Grouping(weight.shape[1] * group, weight.shape[0], group)
        group = most_groups(weight, grouping)
        weight = regroup_weight(weight, Regrouping(grouping, replace(grouping, group=group)))
    outputs, inputs = weight.shape[0] // group, weight.shape[1]
    lifted = 2 - rank if group > 1 else 0
    is_depthwise = group > 1 and inputs == outputs == 1
    kind = (DEPTHWISE if is_depthwise else FOLDED[rank + lifted, group > 1])[layer.channels_last]
    data, stored = CONVOLUTIONS[kind]
    spatial = "hw"[-rank:]
    channels = {"g": group, "c": inputs, "f": outputs, "h": 1}
    kernel: dict[str, int] = {**channels, **dict(zip(spatial, fold.kernel, strict=True))}
    at: dict[str, int | None] = {**channels, "n": packed[0]}
    at |= dict(zip(spatial, packed[2:], strict=True))
    there = at | {x: _length(at[x], axis) for x, axis in zip(spatial, fold.window, strict=True)}
    in_order = [letter for letter in ORDER if letter in stored]
    weight = weight.reshape([kernel[letter] for letter in in_order])
    return Folded(
        kind=kind,
        axes=(data, result_axes(data)),
        data=tuple(at[letter] for letter in data),
        weight=weight.transpose([in_order.index(letter) for letter in stored]),
        result=tuple(there[letter] for letter in result_axes(data)),
        channels={i: channels[x] for i, x in enumerate(result_axes(data)) if x in "gf"},
        lifted=lifted,
        window={data.index(x): axis for x, axis in zip(spatial, fold.window, strict=True)},
    )


def _length(length: int | None, axis: FoldedAxis) -> int | None:
    """Return the positions of the result."""
    names = ("kernel", "stride", "dilation", "pad_begin", "pad_end")
    return ConvAxis(length=length, **{name: getattr(axis, name) for name in names}).out_length


def _init(
    layer: Layer, site: LinearSite, fold: ConvFold, folded: Folded, unfolding: Sequence[Step]
) -> Any:
    """Return the tensor to which the products are added.

    A bias is folded as ONNX's is, and a number stays one; any other tensor is moved like the
    result, but the other way.
    """
    init, element = layer.op.operands[2], layer.op.result.type.element_type
    axes = [i for i, x in enumerate(result_axes(layer.axes[0])) if x in "gf"]
    numbers = _per_channel(init, axes or list(folded.channels))
    if numbers is None:
        return moved(init, inverted(folded.result, unfolding))
    result = empty(folded.result, element, init)
    if numbers.ndim == 0:
        held = mlir.ir.FloatAttr.get(element, float(numbers))
        return mlir.linalg.fill(mlir.arith.constant(element, held), outs=[result])
    bias = folded_vector(site, numbers.ravel(), fold).reshape(list(folded.channels.values()))
    others = [i for i in range(len(folded.result)) if i not in folded.channels]
    return mlir.linalg.broadcast(dense(bias), outs=[result], dimensions=others).results[0]


def _per_channel(value: Any, axes: Sequence[int]) -> Array | None:
    """Return the numbers of a tensor if they differ along some axes only; one if all are equal."""
    source, numbers = value.owner, numbers_of(value)
    others = [i for i in range(value.type.rank) if i not in axes]
    is_copied = False
    if not isinstance(source, mlir.ir.Block):
        is_copied = source.name == "linalg.fill" or (
            source.name == "linalg.broadcast" and list(source.attributes["dimensions"]) == others
        )
    if is_copied:
        numbers = numbers_of(source.operands[0])
    if numbers is not None and len({number.tobytes() for number in numbers.flat}) == 1:
        return np.asarray(numbers.flat[0])
    return numbers if is_copied else None
