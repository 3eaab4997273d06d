"""Predict how long a layer takes on a target: a roofline with tiles, padding and copies.

    kernel: max(multiply-adds in full tiles / rate, bytes / bandwidth)
    layer: kernel + staging + operators * launch
    form: Pad, Transposes -> layer -> Transposes, Slice, and operators no longer fused

There are three kinds of kernels. A *product* of matrices on the CPU reads its data as they are and
computes whole tiles of output channels. A *blocked* kernel (NCHWc on the CPU, an implicit GEMM on
tensor cores) computes such tiles, too, and keeps its tensors padded to blocks: staging copies the
input into blocks, unless it may be read as it is, and the output out of them. A *lowered* kernel
(the CPU at any other rank, groups that fit no block, ConvTranspose, and all Convs of 8-bit
integers) multiplies columns (im2col, col2im): nothing is padded, but staging writes and reads every
column, and a weight that the cache does not hold is read again and again.

Everything is in seconds and bytes of one run, one core or one GPU, at the runtime's level ALL; a
target without blocked kernels stands for EXTENDED. The predictions leave out fusions across layers
and algorithms chosen by heuristics; measuring covers these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from widthfold_onnx.algebra.channels import Grouping
from widthfold_onnx.algebra.packing import MoveOrSum, Transpose
from widthfold_onnx.arrays import round_up
from widthfold_onnx.rules.form import Form
from widthfold_onnx.rules.layers import Layer, ProductLayer
from widthfold_onnx.tuning.targets import Target


@dataclass(frozen=True, kw_only=True)
class Work:
    """The work of a Conv, a ConvTranspose or a product of matrices.

    Attributes:
        dtype: element type, as ONNX names it.
        itemsize: bytes per element.
        channels: input and output channels.
        group: groups.
        taps: elements of the kernel of one channel.
        rank: spatial axes; 0 for a product of matrices.
        inputs: elements of the input.
        outputs: elements of the output.
        transposed: True if it is a ConvTranspose.
        strided: True if it is a Conv that leaves out positions.
        reordered: True if it is an Einsum that moves elements of data or result.
    """

    dtype: str
    itemsize: int
    channels: tuple[int, int]
    group: int
    taps: int
    rank: int
    inputs: int
    outputs: int
    transposed: bool = False
    strided: bool = False
    reordered: bool = False

    @property
    def positions(self) -> int:
        """Times that every weight is multiplied: once per output position, transposed per input."""
        inputs, outputs = self.channels
        return self.inputs // inputs if self.transposed else self.outputs // outputs

    @property
    def weights(self) -> int:
        """Elements of the weight."""
        inputs, outputs = self.channels
        return outputs * (inputs // self.group) * self.taps

    @property
    def columns(self) -> int:
        """Elements of the column matrix that im2col writes, or col2im adds up."""
        return self.positions * self.channels[self.transposed] * self.taps

    @classmethod
    def of(cls, layer: Layer, shape: Sequence[int], out_shape: Sequence[int]) -> Work:
        """Return the work of a layer as it is, at given shapes of input and output."""
        return cls(
            dtype=layer.weight.dtype,
            itemsize=layer.itemsize,
            channels=layer.channels,
            group=layer.group,
            taps=math.prod(layer.weight_shape[2:]),
            rank=layer.spatial_rank,
            inputs=math.prod(shape),
            outputs=math.prod(out_shape),
            transposed=layer.operator.transposed,
            strided=any(axis.stride > 1 for axis in layer.axes),
            reordered=isinstance(layer, ProductLayer) and layer.is_reordered,
        )

    def folded(self, form: Form, shape: Sequence[int], out_shape: Sequence[int]) -> Work:
        """Return the work of a form at given shapes, which the form may extend."""
        channels = form.fold.channels(*self.channels)
        if not self.rank:
            return replace(self, channels=channels, reordered=False)
        fold = form.fold
        return replace(
            self,
            channels=channels,
            group=fold.new_group,
            taps=math.prod(fold.kernel),
            rank=len(fold.kernel),
            inputs=_extended(form.extended_in_shape, shape),
            outputs=_extended(form.extended_out_shape, out_shape) * fold.sums,
            transposed=False,
            strided=any(axis.stride > 1 for axis in fold.window),
        )


def _extended(extents: Sequence[int | None], shape: Sequence[int]) -> int:
    """Return the elements of a tensor at the extents of a form; `shape` has the unknown extents."""
    return math.prod(n if e is None else e for e, n in zip(extents, shape, strict=True))


Moves = tuple[Sequence[MoveOrSum], Sequence[MoveOrSum]]
"""The moves before and behind a layer. The time of a sum of shifted taps is not counted."""

CHANNEL_ALIGNMENT = 4
"""Multiple of the channel count that ReorderInput requires (nchwc_transformer.cc)."""

ROW_OVERHEAD = 8
"""Cost of a row of a product of matrices beside its products, counted in products.

An estimate from the times of a few shapes (262144 and 1048576 rows, 1 to 16 channels, an AVX-512
core); it was not fitted.
"""

STRIDED_PASSES = 3
"""Extra passes for columns gathered at a stride: 0.20 to 0.25 ns more per 4-byte number than at
stride 1 (nine Convs of rank 1 against three, ONNX Runtime 1.31.1, AVX-512)."""

COLUMN_TILE = 128
"""Columns for which a weight on the left of its columns is read once (MLAS_SGEMM_STRIDEN in
mlas/lib/mlasi.h); that of a product, on the right, is packed and read once in all."""

SHORT_RUN = 16
"""A Transpose on the CPU moves runs shorter than this element by element."""


def kernel_seconds(work: Work, target: Target) -> float:
    """Return the predicted seconds of one kernel with its staging copies and its launch.

    It reads and returns tensors in the layout of the model.
    """
    if not work.rank and target.blocked_rank != 0:
        seconds = _product_seconds(work, target)
    elif _is_blocked(work, target):
        seconds = _blocked_seconds(work, target)
    else:
        seconds = _lowered_seconds(work, target)
    return seconds + target.launch


def _roofline(macs: int, elements: int, work: Work, target: Target) -> float:
    """Return the seconds of multiply-adds, or of reading and writing elements if that is more."""
    rate = target.rate[work.dtype] * target.efficiency
    return max(macs / rate, _pass(work, target, elements))


def _product_seconds(work: Work, target: Target) -> float:
    """Return the seconds of a product of matrices on the CPU."""
    inputs, outputs = work.channels
    macs = work.positions * round_up(outputs, target.lanes) * (inputs + ROW_OVERHEAD)
    return _roofline(macs, work.inputs + work.outputs, work, target)


def _lowered_seconds(work: Work, target: Target) -> float:
    """Return the seconds of a product of columns, and of writing and reading every column."""
    weights, positions = work.weights, work.positions
    kernel = _roofline(positions * weights, work.inputs + work.outputs + weights, work, target)
    passes = target.column_passes + STRIDED_PASSES * work.strided
    staging = work.columns * work.itemsize * passes / target.cache_bandwidth
    if weights * work.itemsize > target.cache:
        staging += math.ceil(positions / COLUMN_TILE) * _pass(work, target, weights)
    return kernel + staging


def _blocked_seconds(work: Work, target: Target) -> float:
    """Return the seconds of whole tiles of channels, and of copies into blocks and out of them."""
    inputs, outputs = work.channels
    group, grouping = work.group, Grouping(inputs, outputs, work.group)
    depth = work.taps
    if group == 1 or not grouping.is_depthwise:
        depth = round_up(inputs // group * work.taps, target.depth)
    macs = work.positions * grouping.output_lanes(target.lanes) * depth
    padded_in = work.inputs
    padded_out = work.outputs // outputs * round_up(outputs, target.align)
    staging = _copy(work, target, padded_out + work.outputs)
    if inputs >= target.direct_below or group > 1:
        padded_in = work.inputs // inputs * round_up(inputs, target.align)
        staging += _copy(work, target, work.inputs + padded_in)
    return _roofline(macs, padded_in + padded_out + work.weights, work, target) + staging


EINSUM_MOVES = 1 / 3
"""Seconds per element of data and result that an Einsum reorders, as a share of `Target.scatter`:
1.6 to 1.9 ns on AVX-512 (ONNX Runtime 1.32.0, three extents of `btgi,gih->btgh`)."""


def layer_seconds(work: Work, target: Target) -> float:
    """Return the predicted seconds of a layer as it is, and of the operator behind it."""
    elements = work.inputs + work.outputs if work.reordered else 0
    seconds = kernel_seconds(work, target) + elements * EINSUM_MOVES * target.scatter
    return seconds + _copy(work, target, 2 * work.outputs)


def form_seconds(work: Work, moves: Moves, form_work: Work, unfused: int, target: Target) -> float:
    """Predict a layer in another form.

    Args:
        work: work of the layer as it is.
        moves: the Reshapes and Transposes before and behind the form.
        form_work: work of the form.
        unfused: number of operators that a runtime fuses into the layer as it is, but not into the
            form, because unpacking stands between.
        target: the device.
    """
    copied = _moves(moves[0], form_work.inputs, work, target)
    copied += _moves(moves[1], form_work.outputs, work, target)
    if form_work.inputs > work.inputs:
        copied += _copy(work, target, work.inputs + form_work.inputs)
    if form_work.outputs > work.outputs:
        copied += _copy(work, target, 2 * work.outputs)
    behind = unfused + 1  # one more stands behind every layer, as in `layer_seconds`
    copied += behind * _copy(work, target, 2 * work.outputs)
    return kernel_seconds(form_work, target) + copied


def _moves(steps: Sequence[MoveOrSum], elements: int, work: Work, target: Target) -> float:
    """Predict packing or unpacking a tensor: Transposes copy it, Reshapes are free."""
    seconds = 0.0
    for step in steps:
        if isinstance(step, Transpose):
            seconds += _pass(work, target, 2 * elements) / target.transpose + target.launch
            if _scatters(step):
                seconds += elements * target.scatter
    return seconds


def _scatters(step: Transpose) -> bool:
    """Check whether a Transpose moves short runs of elements and is no matrix transpose.

    Extents that are not known count as 1.
    """
    last = len(step.order)
    while last and step.order[last - 1] == last - 1:
        last -= 1
    run = math.prod(extent or 1 for extent in step.extents[last:])
    # A matrix transpose moves one axis; all other axes keep their order.
    remainders = ([i for i in step.order if i != axis] for axis in step.order)
    return run < SHORT_RUN and not (
        run == 1 and any(remainder == sorted(remainder) for remainder in remainders)
    )


def _is_blocked(work: Work, target: Target) -> bool:
    """Check whether a blocked kernel runs it; on the CPU as TransformConv in ONNX Runtime decides.

    Groups must be depthwise or whole blocks; input channels that are copied into blocks must be
    a multiple of 4 (channel_alignment).
    """
    if target.blocked_rank == 0:
        return True
    if work.itemsize == 1:
        return False
    inputs, outputs = work.channels
    if work.rank != target.blocked_rank or work.transposed:
        return False
    if work.group == 1:
        return inputs < target.direct_below or inputs % CHANNEL_ALIGNMENT == 0
    if inputs == outputs == work.group:
        return outputs % CHANNEL_ALIGNMENT == 0
    return (inputs // work.group) % target.lanes == (outputs // work.group) % target.lanes == 0


def _copy(work: Work, target: Target, elements: int) -> float:
    """Return the predicted seconds of an operator that reads and writes so many elements in all."""
    return _pass(work, target, elements) + target.launch


def _pass(work: Work, target: Target, elements: int) -> float:
    size = elements * work.itemsize
    cached = size <= target.cache
    return size / (target.cache_bandwidth if cached else target.memory_bandwidth)
