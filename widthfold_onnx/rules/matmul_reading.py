"""Read a product of matrices: find its weight, and collect all that a fold needs."""

from __future__ import annotations

from collections.abc import Mapping

from widthfold_onnx.model.constants import Constant
from widthfold_onnx.model.declared import Dims
from widthfold_onnx.model.graph import Document, Node, Value
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.base import Extents, Site
from widthfold_onnx.rules.dequantized import exact_dequantizer, is_finite
from widthfold_onnx.rules.dequantized_product import ADDEND, problem_of
from widthfold_onnx.rules.matmul_site import MatMulSite
from widthfold_onnx.rules.parameter import dequantizer
from widthfold_onnx.rules.quantized_product import (
    INTEGERS,
    PRODUCT_INPUTS,
    accumulator_overflow,
    quantization,
)
from widthfold_onnx.rules.reading import ITEMSIZE, common_problem
from widthfold_onnx.rules.samples import samples_of

GEMM_MIN_OPSET = 7
"""Below, C broadcasts only if an attribute says so."""


def read_matmul(
    document: Document, site: Site, static: Extents, planned: Extents
) -> MatMulSite | Refusal:
    """Collect operands and shapes of a product of matrices.

    Refuses the nodes that every rule refuses, two constant operands or none, data of unknown rank
    or without an axis of positions, a computed C, and what `quantized_product` refuses.
    """
    node = site.node
    gemm = node.op_type == "Gemm"
    problem = common_problem(document, site) or _opset_problem(document, gemm=gemm)
    if problem is not None:
        return problem
    operands = _operands(document, node)
    if isinstance(operands, Refusal):
        return operands
    data, weight, left = operands
    flags = [flag(node, "transA"), flag(node, "transB")]
    transposed, turned = flags[left], flags[not left]
    addend = _addend(document, node) if gemm else None
    if isinstance(addend, Refusal):
        return addend
    maker = exact_dequantizer(document, data)
    stored_weight = node.inputs[PRODUCT_INPUTS[node.op_type].operands[not left]]
    is_dequantized = maker is not None and dequantizer(stored_weight) is not None
    if is_dequantized:
        problem = problem_of(document, node, maker, stored_weight, left=left, turned=turned)
    sizes = INTEGERS if PRODUCT_INPUTS[node.op_type].zeros else ITEMSIZE
    problem = problem or _weight_problem(document, node, weight, sizes)
    if problem is not None:
        return problem
    matrix = matrix_shape(weight.shape, left=left)
    given = quantization(document, node, planned, matrix, left=left)
    if isinstance(given, Refusal):
        return given
    extents = _data_extents(data, static, planned)
    if isinstance(extents, Refusal):
        return extents
    fixed, assumed = extents
    result = MatMulSite(
        node=node,
        scope=site.scope,
        name=site.name,
        op=site.op,
        static=_seen(fixed, transposed=transposed),
        planned=_seen(assumed, transposed=transposed),
        opset=document.opset,
        weight=weight,
        stored=lambda: document.read(weight),
        weight_shape=matrix,
        zero=given.zero,
        is_finite=weight.dtype in INTEGERS or is_finite(document, data),
        addend=addend,
        beside=given.beside,
        dequantizer=maker if isinstance(maker, Node) else None,
        is_dequantized=is_dequantized,
        left=left,
        transposed=transposed,
        turned=turned,
        samples=samples_of(document, fixed, transposed=transposed),
        itemsize=sizes[weight.dtype],
    )
    problem = _shape_problem(result, gemm=gemm)
    if problem is None and result.is_integer:
        problem = accumulator_overflow(document.read(weight).reshape(matrix), given.zero, left=left)
    return problem or result


def matrix_shape(shape: tuple[int, ...], *, left: bool) -> tuple[int, ...]:
    """Return the extents of a weight as a matrix: a vector is a row on the left, else a column."""
    if len(shape) != 1:
        return shape
    return (1, *shape) if left else (*shape, 1)


def _opset_problem(document: Document, *, gemm: bool) -> Refusal | None:
    if gemm and document.opset < GEMM_MIN_OPSET:
        return Refusal(
            Code.OPSET_TOO_OLD, f"Gemm at opset {document.opset} is below {GEMM_MIN_OPSET}"
        )
    return None


def _operands(document: Document, node: Node) -> tuple[Value, Constant, bool] | Refusal:
    """Return data, weight, and whether the weight is on the left."""
    a, b = (node.inputs[index] for index in PRODUCT_INPUTS[node.op_type].operands)
    assert a is not None
    assert b is not None
    one, other = document.constant(a), document.constant(b)
    if isinstance(one, Refusal) and isinstance(other, Refusal):
        code = other.code if one.code == Code.NOT_CONSTANT else one.code
        reason = f"neither operand is a constant weight: {one.reason}; {other.reason}"
        return Refusal(Code(f"weight-{code}"), reason)
    if isinstance(one, Refusal):
        assert isinstance(other, Constant)
        return a, other, False
    if isinstance(other, Refusal):
        return b, one, True
    return Refusal(Code.CONSTANT_PRODUCT, "both operands are constant: no data flows through it")


def _data_extents(data: Value, static: Extents, planned: Extents) -> tuple[Dims, Dims] | Refusal:
    """Return the extents of the data as the model fixes them, and as the plan assumes them."""
    fixed, assumed = static(data), planned(data)
    if fixed is None or assumed is None:
        return Refusal(Code.UNKNOWN_SHAPE, "the rank of the data is not known")
    if len(fixed) < 2:
        return Refusal(Code.ONE_POSITION, "the data is a vector: there are no positions to fold")
    return fixed, assumed


def _weight_problem(
    document: Document, node: Node, weight: Constant, sizes: Mapping[str, int]
) -> Refusal | None:
    if any(value is not None and document.is_annotated(value) for value in node.inputs):
        return Refusal(Code.WEIGHT_ANNOTATED, "a quantization annotation describes an operand")
    if weight.dtype not in sizes:
        return Refusal(
            Code.DTYPE_UNSUPPORTED, f"elements are {weight.dtype}; {', '.join(sizes)} fold"
        )
    if len(weight.shape) == 0:
        return Refusal(
            Code.INCONSISTENT_SHAPES, "the weight is a single number: no product has one"
        )
    return None


def _addend(document: Document, node: Node) -> Constant | Refusal | None:
    value = node.inputs[ADDEND] if len(node.inputs) > ADDEND else None
    if value is None:
        return None
    constant = document.constant(value)
    if isinstance(constant, Refusal):
        return Refusal(Code(f"bias-{constant.code}"), f"C {constant.reason}")
    return constant


def _seen(stored: Dims, *, transposed: bool) -> Dims:
    """Return the extents as the product reads them."""
    return (*stored[:-2], stored[-1], stored[-2]) if transposed else stored


def _shape_problem(site: MatMulSite, *, gemm: bool) -> Refusal | None:
    data, weight = site.planned, site.weight_shape
    if 0 in data or 0 in weight:
        return Refusal(Code.EMPTY_TENSOR, f"data {list(data)} or weight {list(weight)} is empty")
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
        Code.INCONSISTENT_SHAPES, f"data {list(data)}, weight {list(weight)}{added} do not fit"
    )


def flag(node: Node, name: str) -> bool:
    """Check whether an attribute that is 0 or 1 is set."""
    return name in node.attributes and node.attributes[name].as_int() != 0
