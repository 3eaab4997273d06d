"""Define sites, reformulations and their ends: the types that all rules share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from widthfold_onnx.fold.layout import Step
from widthfold_onnx.fold.state import State
from widthfold_onnx.model.constants import Constant
from widthfold_onnx.model.declared import Dims
from widthfold_onnx.model.graph import Node, Value
from widthfold_onnx.model.messages import Scope
from widthfold_onnx.refusal import Refusal

Array = npt.NDArray[Any]

Extents = Callable[[Value], Dims | None]
"""Extents of a value; None where not even the rank is known."""


@dataclass(frozen=True, eq=False)
class Site:
    """A node that could be reformulated."""

    node: Node
    scope: Scope
    name: str
    op: str


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearSite(Site, ABC):
    """A linear operator with a constant weight.

    Attributes:
        static: extents of the data that the model itself fixes; None where open.
        planned: the same with the assumed input shapes.
        opset: version of the default operator set of the model.
        weight: the weight as the operator stores it.
        stored: reads the numbers of the weight.
        weight_shape: extents of the weight in the form that is folded.
        zero: the number in the weight that stands for 0 and fills the structural zeros of a fold:
            0, or the zero point of a quantized weight; one number or one per output channel,
            broadcasts against `weight_shape`.
        is_finite: neither data nor result can hold Inf or NaN for any input: they are integers, or
            the data was dequantized from integers.
        dequantizer: the DequantizeLinear of the data, if quantizing its result again gives back
            every number.
        itemsize: bytes per element.
    """

    static: Dims
    planned: Dims
    opset: int
    weight: Constant
    stored: Callable[[], Array]
    weight_shape: tuple[int, ...]
    zero: Array = field(default_factory=lambda: np.zeros((), np.int8))
    is_finite: bool
    dequantizer: Node | None
    itemsize: int

    @property
    def data(self) -> Value:
        """The operand that is not constant, as the node reads it now."""
        value = self.node.inputs[self.data_index]
        assert value is not None
        return value

    @property
    def data_index(self) -> int:
        """Index of the data among the inputs of the node."""
        return 0

    @cached_property
    def has_finite_weight(self) -> bool:
        """True if the weight holds neither Inf nor NaN; it is read for this."""
        return bool(np.isfinite(self.stored()).all())

    @property
    @abstractmethod
    def channels(self) -> tuple[int, int]:
        """Input and output channels."""

    @property
    @abstractmethod
    def output(self) -> Dims:
        """Shape of the output as planned."""

    @property
    @abstractmethod
    def macs(self) -> int | None:
        """Multiply-adds of one run, None where an extent is not known."""

    @property
    @abstractmethod
    def signature(self) -> dict[str, object]:
        """Its geometry without extents, element type and weight; of JSON's types."""

    @property
    @abstractmethod
    def geometry(self) -> Hashable:
        """The values that determine its forms besides extents, element size and weight."""

    @property
    @abstractmethod
    def attributes(self) -> str:
        """Its signature in words, for reports."""


class Fold(Protocol):
    """The interface of all folds."""

    def channels(self, inputs: int, outputs: int) -> tuple[int, int]:
        """Return input and output channels of the folded node, for those of the original."""

    @property
    def lift(self) -> int:
        """Number of axes that are added."""

    def structural_zeros(self) -> float:
        """Return the share of structural zeros in the folded weight, 0 to 1."""

    def spread(self) -> float:
        """Return how many outputs Inf or NaN in one input may reach, after / before the fold."""

    def weight_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the folded weight."""


@dataclass(frozen=True)
class Ends:
    """The input and output of a folded node; a state is None for the natural tensor.

    Attributes:
        data: index of the input that it reads.
        in_shape: extents of the input as far as they are fixed; `out_shape` likewise.
        natural_because: why the folded result is unfolded at once; None where it is not, or
            nothing was folded.
    """

    data: int
    reads: State | None
    returns: State | None
    in_shape: Dims
    out_shape: Dims
    natural_because: Refusal | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Reformulation(ABC):
    """An equivalent replacement for a site, and its predicted cost.

    Attributes:
        fold: how the weight is folded.
        axis: folded axes by name, joined by "+".
        factor: positions per original channel that became channels: of the output, or of the
            input where that is the coarser one (`ConvAxis.positions`).
        is_view: both ends are pure Reshapes, so that nothing is copied.
        kind: how each axis is folded, joined by "+".
        flops_ratio: multiply-adds after / before.
        bytes_ratio: bytes of input, weight and output after / before.
    """

    fold: Fold
    axis: str
    factor: int
    is_view: bool
    kind: str
    flops_ratio: float
    bytes_ratio: float

    @property
    @abstractmethod
    def folding(self) -> tuple[Step, ...]:
        """The Reshapes and Transposes of the data."""

    @property
    @abstractmethod
    def unfolding(self) -> tuple[Step, ...]:
        """The Reshapes and Transposes of the result."""

    @property
    @abstractmethod
    def rests(self) -> tuple[int, ...]:
        """Per axis of the data the number that must divide its extent if it is open; 1 for any."""

    @abstractmethod
    def exact(self, site: LinearSite) -> Mapping[int, int]:
        """Return the extents of the data that the form is planned for, by axis; others may vary."""

    @abstractmethod
    def ends(self, site: LinearSite) -> Ends:
        """Return the states at both ends; None where no state describes the tensor."""

    def became(self, inputs: int, outputs: int) -> str:
        """Return the new channels for reports, and the rank if that changed."""
        text = "{} -> {}".format(*self.fold.channels(inputs, outputs))
        return f"{text}, with one more axis" if self.fold.lift else text

    @property
    def form(self) -> str:
        """View or move, and the kind of fold, for reports."""
        return f"{'view' if self.is_view else 'move'} {self.kind}"


def product(extents: Dims) -> int | None:
    """Return the number of elements of a tensor, None where an extent is not known."""
    known = [extent for extent in extents if extent is not None]
    return math.prod(known) if len(known) == len(extents) else None
