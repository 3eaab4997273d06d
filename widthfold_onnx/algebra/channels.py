"""Regroup the channels of a Conv: change its groups, and append channels of zeros.

A Conv of G groups is a Conv of one group with a block-diagonal weight [O, C, *kernel]: W[o, c] is
zero unless floor(o / (O/G)) = floor(c / (C/G)). Extend that weight by zeros to O' >= O and C' >= C
and keep the blocks of G' groups:

    W'[o, c] = W[o, c]    where floor(o / (O'/G')) = floor(c / (C'/G'))

All named changes are instances. G' = 1 makes a grouped Conv dense. G' > G divides a dense Conv into
groups: elements outside of the blocks are left out, and must be zero. C' > C pads the channels, as
NVIDIA's guide advises.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from widthfold_onnx.arrays import Array, round_up

Mask = npt.NDArray[np.bool_]

CHANNEL_MULTIPLES = (4, 8, 16)
"""Multiples to which channels are padded, as kernels ask for them: 4 channels of ONNX Runtime's
blocked kernels on the CPU (nchwc_transformer.cc), 8 of a tensor core in half precision (NVIDIA
convolution guide), 16 floats of AVX-512."""


@dataclass(frozen=True)
class Grouping:
    """Channels of a Conv and the groups that they form."""

    inputs: int = 1
    outputs: int = 1
    group: int = 1

    @property
    def size(self) -> int:
        """Number of pairs of an output and an input channel that the weight connects."""
        return self.outputs * (self.inputs // self.group)

    @property
    def is_depthwise(self) -> bool:
        """True if every group has one input and one output channel."""
        return self.inputs == self.outputs == self.group

    def output_lanes(self, vector: int) -> int:
        """Return the number of output channels that whole vectors compute, used or not.

        A vector holds `vector` output channels of one group; depthwise groups share vectors.

        >>> Grouping(3, 20).output_lanes(16), Grouping(4, 20, 2).output_lanes(16)
        (32, 32)
        >>> Grouping(20, 20, 20).output_lanes(16)
        32
        """
        if self.is_depthwise:
            return round_up(self.outputs, vector)
        return self.group * round_up(self.outputs // self.group, vector)

    def joins(self, output: npt.NDArray[np.intp], input_: npt.NDArray[np.intp]) -> Mask:
        """Check, element by element, whether an output and an input channel share a group."""
        groups = output // (self.outputs // self.group), input_ // (self.inputs // self.group)
        return np.equal(*groups)


@dataclass(frozen=True)
class Regrouping:
    """A change from one grouping to another; equal ones change nothing."""

    original: Grouping = Grouping()
    result: Grouping = Grouping()

    @property
    def is_possible(self) -> bool:
        """True if no channels are taken away, and the groups divide the new ones."""
        original, result = self.original, self.result
        is_smaller = result.inputs < original.inputs or result.outputs < original.outputs
        return not is_smaller and math.gcd(result.inputs, result.outputs) % result.group == 0

    @property
    def growth(self) -> float:
        """Elements of the weight, after / before."""
        return self.result.size / self.original.size

    @property
    def kept_share(self) -> float:
        """Share of the elements of the original weight that are kept, 0 to 1."""
        return _ratios(self)[0]

    @property
    def met_ratio(self) -> float:
        """Elements of the new weight between original channels / elements of the original."""
        return _ratios(self)[1]

    @property
    def leaves_out(self) -> bool:
        """True if elements are left out, which must then be zero."""
        return self.kept_share < 1

    def shape(self, outputs: int, per_group: int) -> tuple[int, int]:
        """Return the extents [O', C'/G'] of the new weight for the original extents."""
        if self.original == self.result:
            return outputs, per_group
        return self.result.outputs, self.result.inputs // self.result.group

    def channels(self, inputs: int, outputs: int) -> tuple[int, int]:
        """Return the new input and output channels for the original channels."""
        original, result = self.original, self.result
        return inputs + result.inputs - original.inputs, outputs + result.outputs - original.outputs


def regroup_weight(weight: Array, regrouping: Regrouping) -> Array:
    """Return the weight of the regrouped Conv; numbers are copied bit for bit, all else is zero.

    >>> dense = Regrouping(Grouping(2, 2, group=2), Grouping(2, 2, group=1))
    >>> regroup_weight(np.array([[[3]], [[4]]]), dense).tolist()
    [[[3], [0]], [[0], [4]]]

    Args:
        weight: [O, C/G, *kernel], any dtype.
        regrouping: the change to O' and C' channels in G' groups.

    Returns:
        [O', C'/G', *kernel], same dtype.
    """
    original, result = regrouping.original, regrouping.result
    if original == result:
        return weight
    inner, outer = original.inputs // original.group, result.inputs // result.group
    o, c = np.indices((result.outputs, outer))
    c += o // (result.outputs // result.group) * outer
    mask = (o < original.outputs) & (c < original.inputs) & original.joins(o, c)
    new_weight = np.zeros((*mask.shape, *weight.shape[2:]), weight.dtype)
    new_weight[mask] = weight[o[mask], c[mask] % inner]
    return new_weight


def regroup_bias(bias: Array, regrouping: Regrouping) -> Array:
    """Return the bias of the regrouped Conv: [O] with zeros appended, same dtype."""
    return np.pad(bias, (0, regrouping.result.outputs - regrouping.original.outputs))


def most_groups(weight: Array, grouping: Grouping) -> int:
    """Return the largest number of groups whose blocks hold all nonzero elements of a weight.

    Args:
        weight: [O, C/G, *kernel].
        grouping: the channels and groups that the Conv has.

    Returns:
        The largest multiple of G that leaves out zeros only; G if there is no larger one.
    """
    inner = grouping.inputs // grouping.group
    o, c = np.nonzero((weight != 0).reshape(*weight.shape[:2], -1).any(axis=2))
    c += o // (grouping.outputs // grouping.group) * inner
    most = math.gcd(grouping.inputs, grouping.outputs)
    for count in range(most, grouping.group, -grouping.group):
        finer = Grouping(grouping.inputs, grouping.outputs, count)
        if most % count == 0 and finer.joins(o, c).all():
            return count
    return grouping.group


@cache
def _ratios(regrouping: Regrouping) -> tuple[float, float]:
    """Return `Regrouping.kept_share` and `Regrouping.met_ratio`."""
    original, result = regrouping.original, regrouping.result
    if original == result:
        return 1.0, 1.0
    pairs = np.indices((original.outputs, original.inputs))
    meeting = result.joins(*pairs)
    overlap, total = (int(np.sum(mask)) for mask in (meeting & original.joins(*pairs), meeting))
    return overlap / original.size, total / original.size
