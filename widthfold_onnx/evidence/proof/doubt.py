"""Say why two models may be equal though random elements differ, by their values in float64."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

from widthfold_onnx.arrays import Array, integers_of_all_sizes
from widthfold_onnx.evidence.proof.evaluation import Evaluation
from widthfold_onnx.evidence.proof.field import key_of
from widthfold_onnx.evidence.proof.float64 import evaluator
from widthfold_onnx.evidence.proof.operators import RANDOM, operator
from widthfold_onnx.evidence.proof.program import Program, variables_of
from widthfold_onnx.evidence.proof.values import FLOATS, OpaqueValue, Shape
from widthfold_onnx.model.proto.indices import index_limits
from widthfold_onnx.model.proto.walk import model_nodes, retain
from widthfold_onnx.model.shapes.table import ShapeTable

EPSILONS: Mapping[int, float] = dict(
    zip(FLOATS, (2.0**-10, 2.0**-7, 2.0**-23, 2.0**-52), strict=True)
)
"""Distance from 1 to the next float, by element type."""

MAX_UNITS = 64
"""Largest error of a result by rounded constants, in `EPSILONS` times the largest result."""

MAX_EXPONENT = 6
"""Numbers are drawn with binary exponents from -MAX_EXPONENT to it: beyond usual limits."""

MAX_ROUNDING = 2.0**-40
"""Largest error of a result from rounding in float64, as a fraction of the largest result. A change
of one float32 weight by one unit in the last place moves the result further."""

Operators = Counter[tuple[str, int]]
"""Operators by name and the version since which they are unchanged."""


def doubt_of(target: str, old: Evaluation, new: Evaluation) -> str:
    """Say why elements that differ do not show that a value differs in two models.

    Models that apply the same functions return different values if elements differ. Two cases are
    left to values in float64. If one model applies other functions, both may compute the same by a
    law that the proof does not know. If one multiplies constants, the other may have stored their
    rounded product.

    Args:
        target: a value that both compute.
        old: the original, evaluated up to this value alone.
        new: the new model, likewise.

    Returns:
        The reason; "" where the models differ.
    """
    runs, table = (old, new), old.table
    variables = {**old.shapes, **old.variables}
    values = [run.values[target] for run in runs]
    is_opaque = any(isinstance(value, OpaqueValue) for value in values)
    old_only, new_only = _operator_differences(old.functions, new.functions)
    merged_operators, _ = _operator_differences(
        *(_operators(run.program, target, variables) for run in runs)
    )
    is_merged = bool(merged_operators) and values[0].constants > values[1].constants
    chooses = any(name == "If" for name, _ in old.functions)  # numbers reach one branch only
    if not is_opaque and (chooses or not (old_only or new_only or is_merged)):
        return ""
    numbers = [_numbers(run.program, target, variables, table) for run in runs]
    if numbers[0] is None or numbers[1] is None:
        foreign = [name for name in new_only if "." in name]  # of a domain that is not onnx's own
        if foreign:
            return f"the definition of {', '.join(foreign)} is not known"
        return "its extents are not known" if is_opaque else ""
    if numbers[0].shape != numbers[1].shape:
        return ""
    axes = tuple(axis for axis in range(numbers[0].ndim) if axis != 1)  # each channel by itself
    largest = np.abs(numbers[0]).max(axes, initial=0)
    distance = np.abs(numbers[0] - numbers[1]).max(axes, initial=0)
    epsilon = EPSILONS.get(table.element_type("", target), EPSILONS[FLOATS[2]])
    if (old_only or new_only or is_opaque) and (distance <= MAX_ROUNDING * largest).all():
        return f"the numbers agree{_operators_text(old_only, new_only)}"
    if is_merged and (distance <= MAX_UNITS * epsilon * largest).all():
        return f"the new model has rounded results of {', '.join(merged_operators)} on constants"
    return ""


def _operator_differences(old: Operators, new: Operators) -> tuple[list[str], list[str]]:
    """Name the operators that only one of two models applies, or that it applies more often."""
    rests = old - new, new - old
    ambiguous = set.intersection(*({name for name, _ in rest} for rest in rests))
    old_only, new_only = (
        sorted({f"{name}-{version}" if name in ambiguous else name for name, version in rest})
        for rest in rests
    )
    return old_only, new_only


def _operators(program: Program, target: str, variables: Mapping[str, Shape]) -> Operators:
    nodes = [program.scope.nodes[i] for i in program.scope.ancestors([target], variables)]
    return Counter((operator(node), program.version(node)) for node in nodes)


def _operators_text(old_only: list[str], new_only: list[str]) -> str:
    old, new = ", ".join(old_only), ", ".join(new_only)
    if old and new:
        return f", but the original applies {old}, the new model {new}"
    if old or new:
        return f", but only the {'original' if old else 'new model'} applies {old or new}"
    return ", but its extents are not known"


def _numbers(
    program: Program, target: str, variables: Mapping[str, Shape], table: ShapeTable
) -> Array | None:
    """Compute a value in float64; None where the reference implementation cannot."""
    scope = program.scope
    indices = scope.ancestors([target], variables)
    operands = {target, *(name for i in indices for name in scope.reads[i])}
    names = variables_of(program, target, variables)
    arrays = {name: program.initializer(name) for name in operands - names}
    constants = [numpy_helper.from_array(a, name) for name, a in arrays.items() if a is not None]
    inputs = [helper.make_tensor_value_info(name, FLOATS[3], None) for name in sorted(names)]
    outputs = [helper.make_tensor_value_info(target, FLOATS[3], None)]
    nodes = [program.scope.nodes[i] for i in indices]
    segment = helper.make_graph(nodes, "segment", inputs, outputs, constants)
    model = helper.make_model(segment, opset_imports=program.proto.opset_import)
    _seed(model)
    limits = index_limits(model)
    feeds = {
        name: _random(name, variables[name], table.element_type("", name), limits.get(name))
        for name in names
    }
    try:
        with np.errstate(all="ignore"):
            (result,) = evaluator(model).run(None, feeds)
    except Exception:
        # It raises a different error for every operator that it does not know or cannot compute.
        return None
    return np.asarray(result, np.float64)


def _seed(model: onnx.ModelProto) -> None:
    """Let each random node draw the same numbers in both models and in every process.

    Two nodes draw different numbers; a seed is small enough for float32, which stores it.
    """
    for node in model_nodes(model):
        if node.op_type in RANDOM:
            retain(node.attribute, lambda attribute: attribute.name != "seed")
            node.attribute.extend([helper.make_attribute("seed", key_of(*node.output) % 2**24)])


def _random(name: str, shape: Shape, element_type: int, limit: int | None) -> Array:
    """Draw the numbers of a variable, the same in both models; indices are below a limit."""
    rng = np.random.default_rng(key_of("numbers", name))
    kind = helper.tensor_dtype_to_np_dtype(element_type or FLOATS[3])
    if kind.kind in "iu":
        if limit is not None:
            return np.asarray(rng.integers(0, max(limit, 1), shape)).astype(kind)
        return integers_of_all_sizes(rng, shape, kind)
    numbers = rng.standard_normal(shape) * 2.0 ** rng.integers(-MAX_EXPONENT, MAX_EXPONENT, shape)
    if element_type in (*FLOATS, onnx.TensorProto.UNDEFINED):
        return numbers
    return np.floor(np.abs(numbers)).astype(kind)
