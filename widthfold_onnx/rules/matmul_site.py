"""Read a MatMul or Gemm: which operand is the weight, and everything that the algebra needs."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from widthfold_onnx.model.constants import Constant
from widthfold_onnx.model.graph import Document, Node, Value
from widthfold_onnx.model.propagate import Dims
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rules.base import Extents, LinearSite, Site, product
from widthfold_onnx.rules.quantized import is_dequantized
from widthfold_onnx.rules.reading import ITEMSIZE, common_problem
from widthfold_onnx.rules.samples import Samples, samples_of

GEMM_MIN_OPSET = 7
"""Below, C broadcasts only where an attribute says so."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MatMulSite(LinearSite):
    """A product of matrices with one constant operand.

    The data is given as the product reads it, [.., L, C] or for a weight on the left [.., C, L];
    the weight as it is stored, but with two axes at least.

    Attributes:
        addend: C of a Gemm, if it has one.
        left: the weight is the left operand.
        transposed: the data is stored with its two last axes exchanged.
        turned: so is the weight.
        samples: where the data may count samples of a batch.
    """

    addend: Constant | None
    left: bool
    transposed: bool
    turned: bool
    samples: Samples

    @property
    def data_index(self) -> int:
        """Which input of the node the data is."""
        return int(self.left)

    @property
    def flat(self) -> bool:
        """Whether the weight is a vector, so that the result has no axis of channels."""
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
        """Extents of the result for data of some extents; a vector's axis of channels is kept."""
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
        """Which operand is the weight, how both are stored, and what is added."""
        added = None if self.addend is None else list(self.addend.shape)
        flags = {"left": self.left, "transposed": self.transposed, "turned": self.turned}
        return {**flags, "flat": self.flat, "bias": added}

    @property
    def geometry(self) -> Hashable:
        """Which operand is the weight, how both are stored, and where samples may be."""
        return (self.left, self.transposed, self.turned, self.flat, self.samples)

    @property
    def attributes(self) -> str:
        """Which operand is the weight, and what is transposed."""
        text = f"weight {'left' if self.left else 'right'}"
        text += ", data transposed" * self.transposed + ", weight transposed" * self.turned
        return text if self.addend is None else f"{text}, C {list(self.addend.shape)}"


def read_matmul(
    document: Document, site: Site, static: Extents, planned: Extents
) -> MatMulSite | Refusal:
    """Collect operands and shapes of a MatMul or Gemm.

    Refuses, besides what no rule can do, two constant operands or none, data of unknown rank or
    without an axis of positions, and a C that is computed.
    """
    node = site.node
    problem = common_problem(document, site)
    if problem is not None:
        return problem
    gemm = node.op_type == "Gemm"
    if gemm and document.opset < GEMM_MIN_OPSET:
        return Refusal("opset-too-old", f"Gemm at opset {document.opset} is below {GEMM_MIN_OPSET}")
    operands = _operands(document, node)
    if isinstance(operands, Refusal):
        return operands
    data, weight, left = operands
    if is_dequantized(node):
        return Refusal(
            "quantized",
            f"both operands are dequantized: the runtime computes such a {site.op} in integers, "
            "which a fold of the float weight would end",
        )
    addend = _addend(document, node) if gemm else None
    if isinstance(addend, Refusal):
        return addend
    if any(value is not None and document.is_annotated(value) for value in node.inputs):
        return Refusal("weight-annotated", "a quantization annotation describes an operand")
    if weight.dtype not in ITEMSIZE:
        return Refusal(
            "dtype-unsupported", f"elements are {weight.dtype}; {', '.join(ITEMSIZE)} fold"
        )
    flags = [flag(node, "transA"), flag(node, "transB")]
    transposed, turned = flags[left], flags[not left]
    fixed, assumed = static(data), planned(data)
    if fixed is None or assumed is None:
        return Refusal("unknown-shape", "the rank of the data is not known")
    if len(weight.shape) == 0:
        return Refusal("inconsistent-shapes", "the weight is a single number: no product has one")
    if len(fixed) < 2:
        return Refusal("one-position", "the data is a vector: there are no positions to fold")
    result = MatMulSite(
        node=node,
        scope=site.scope,
        name=site.name,
        op=site.op,
        static=_seen(fixed, transposed=transposed),
        planned=_seen(assumed, transposed=transposed),
        weight=weight,
        weight_shape=matrix_shape(weight.shape, left=left),
        addend=addend,
        left=left,
        transposed=transposed,
        turned=turned,
        samples=samples_of(document, fixed, transposed=transposed),
        itemsize=ITEMSIZE[weight.dtype],
    )
    return _shape_problem(result, gemm=gemm) or result


def matrix_shape(shape: tuple[int, ...], *, left: bool) -> tuple[int, ...]:
    """Extents of a weight as a matrix: a vector on the left is a row, on the right a column."""
    if len(shape) != 1:
        return shape
    return (1, *shape) if left else (*shape, 1)


def _operands(document: Document, node: Node) -> tuple[Value, Constant, bool] | Refusal:
    """Data, weight, and whether the weight is on the left."""
    a, b = node.inputs[:2]
    assert a is not None
    assert b is not None
    one, other = document.constant(a), document.constant(b)
    if isinstance(one, Refusal) and isinstance(other, Refusal):
        code = other.code if one.code == "not-constant" else one.code
        reason = f"neither operand is a constant weight: {one.reason}; {other.reason}"
        return Refusal(f"weight-{code}", reason)
    if isinstance(one, Refusal):
        assert isinstance(other, Constant)
        return a, other, False
    if isinstance(other, Refusal):
        return b, one, True
    return Refusal("constant-product", "both operands are constant: no data flows through it")


def _addend(document: Document, node: Node) -> Constant | Refusal | None:
    value = node.inputs[2] if len(node.inputs) > 2 else None
    if value is None:
        return None
    constant = document.constant(value)
    if isinstance(constant, Refusal):
        return Refusal(f"bias-{constant.code}", f"C {constant.reason}")
    return constant


def _seen(stored: Dims, *, transposed: bool) -> Dims:
    """Extents as the product reads them."""
    return (*stored[:-2], stored[-1], stored[-2]) if transposed else stored


def _shape_problem(site: MatMulSite, *, gemm: bool) -> Refusal | None:
    data, weight = site.planned, site.weight_shape
    if 0 in data or 0 in weight:
        return Refusal("empty-tensor", f"data {list(data)} or weight {list(weight)} is empty")
    channels, outputs = site.channels
    fits = data[-2 if site.left else -1] in (None, channels)
    pairs = zip(reversed(data[:-2]), reversed(site.batches), strict=False)
    fits = fits and all(a in (None, b) or 1 in (a, b) for a, b in pairs)
    fits = fits and (not gemm or len(data) == len(site.weight.shape) == 2)
    addend = site.addend
    if addend is not None and fits:
        positions = data[-1 if site.left else -2]
        wanted = (outputs, positions) if site.left else (positions, outputs)
        extents = (1,) * (2 - len(addend.shape)) + addend.shape
        fits = len(extents) == 2 and addend.dtype == site.weight.dtype
        fits = fits and all(e in (1, w) or w is None for e, w in zip(extents, wanted, strict=True))
    if fits:
        return None
    added = "" if addend is None else f" and C {list(addend.shape)}"
    return Refusal(
        "inconsistent-shapes", f"data {list(data)}, weight {list(weight)}{added} do not fit"
    )


def _broadcast(data: Dims, weight: tuple[int, ...]) -> Dims:
    """Leading extents of the result; open where the data's is, unless the weight's is not 1."""
    rank = max(len(data), len(weight))
    one = (1,) * (rank - len(data)) + tuple(data)
    other = (1,) * (rank - len(weight)) + tuple(weight)
    return tuple(b if b != 1 else a for a, b in zip(one, other, strict=True))


def flag(node: Node, name: str) -> bool:
    """Whether an attribute that is 0 or 1 is set."""
    return name in node.attributes and node.attributes[name].as_int() != 0
