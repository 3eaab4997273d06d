"""Define the site of a product of matrices with one constant operand."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from widthfold_onnx.model.constants import Constant
from widthfold_onnx.model.declared import Dims
from widthfold_onnx.rules.base import LinearSite, product
from widthfold_onnx.rules.dequantized_product import ADDEND
from widthfold_onnx.rules.quantized_product import INTEGERS, PRODUCT_INPUTS
from widthfold_onnx.rules.samples import Samples


@dataclass(frozen=True, kw_only=True, eq=False)
class MatMulSite(LinearSite):
    """A product of matrices with one constant operand.

    The data is given as the product reads it, [.., L, C] or for a weight on the left [.., C, L];
    the weight as it is stored, but with two axes at least.

    Attributes:
        addend: C of a Gemm, if it has one.
        beside: other constant inputs with one number per output channel, and the weight's zero
            point, by index of the input.
        is_dequantized: data and weight are dequantized.
        left: the weight is the left operand.
        transposed: the data is stored with its two last axes exchanged.
        turned: the weight is stored with its two last axes exchanged.
        samples: the axis of the data that may count samples of a batch.
    """

    addend: Constant | None
    beside: Mapping[int, Constant]
    is_dequantized: bool
    left: bool
    transposed: bool
    turned: bool
    samples: Samples

    @property
    def data_index(self) -> int:
        """Index of the data among the inputs of the node."""
        return PRODUCT_INPUTS[self.op].operands[self.left]

    @property
    def weight_index(self) -> int:
        """Index of the weight among the inputs of the node."""
        return PRODUCT_INPUTS[self.op].operands[not self.left]

    @property
    def parameters(self) -> tuple[int, ...]:
        """Inputs of the node that a fold may change: the weight, and those given per channel."""
        added = () if self.addend is None else (ADDEND,)
        return (self.weight_index, *self.beside, *added)

    @property
    def is_integer(self) -> bool:
        """True if the operator itself multiplies integers."""
        return self.weight.dtype in INTEGERS

    @property
    def flat(self) -> bool:
        """True if the weight is a vector, so that the result has no axis of channels."""
        return len(self.weight.shape) == 1

    @property
    def channels(self) -> tuple[int, int]:
        """Input and output channels."""
        rows, columns = self.weight_shape[-2:]
        return (columns, rows) if self.left != self.turned else (rows, columns)

    @property
    def batches(self) -> tuple[int, ...]:
        """Leading extents of the weight; none where one matrix serves all."""
        return self.weight_shape[:-2]

    def result(self, data: Dims) -> Dims:
        """Return the extents of the result for given data; a vector's axis of channels is kept."""
        leading = _broadcast(data[:-2], self.batches)
        positions, outputs = data[-1 if self.left else -2], self.channels[1]
        return (*leading, outputs, positions) if self.left else (*leading, positions, outputs)

    @property
    def output(self) -> Dims:
        """Extents of the result as planned; a vector's axis of channels is kept."""
        return self.result(self.planned)

    @property
    def macs(self) -> int | None:
        """Multiply-adds of one run, None where an extent is not known."""
        return product((*self.output, self.channels[0]))

    @property
    def signature(self) -> dict[str, object]:
        """The side of the weight, how both operands are stored, and what is added."""
        added = None if self.addend is None else list(self.addend.shape)
        flags = {"left": self.left, "transposed": self.transposed, "turned": self.turned}
        beside = {str(index): list(c.shape) for index, c in self.beside.items()}
        if self.is_dequantized:
            flags["dequantized"] = True
        more = {"beside": beside} if beside else {}
        return {**flags, "flat": self.flat, "bias": added, **more}

    @property
    def geometry(self) -> Hashable:
        """The side of the weight, how both operands are stored, and where samples may be."""
        return (self.left, self.transposed, self.turned, self.flat, self.samples)

    @property
    def attributes(self) -> str:
        """The side of the weight, and what is transposed."""
        text = f"weight {'left' if self.left else 'right'}"
        text += ", data transposed" * self.transposed + ", weight transposed" * self.turned
        return text if self.addend is None else f"{text}, C {list(self.addend.shape)}"


def _broadcast(data: Dims, weight: tuple[int, ...]) -> Dims:
    """Return the leading extents of the result; open if the data's are and the weight's are 1."""
    rank = max(len(data), len(weight))
    one = (1,) * (rank - len(data)) + tuple(data)
    other = (1,) * (rank - len(weight)) + tuple(weight)
    return tuple(b if b != 1 else a for a, b in zip(one, other, strict=True))
