"""Say why two models may be equal though random elements differ, by their values in float64."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

from widthfold_onnx.arrays import Array, integers_of_all_sizes
from widthfold_onnx.errors import note_swallowed
from widthfold_onnx.evidence.proof.evaluation import Evaluation
from widthfold_onnx.evidence.proof.field import key_of
from widthfold_onnx.evidence.proof.float64 import evaluator
from widthfold_onnx.evidence.proof.operators import RANDOM, WRAPPING, operator
from widthfold_onnx.evidence.proof.operators.polynomials import INVERSES
from widthfold_onnx.evidence.proof.program import Program, constant, variables_of
from widthfold_onnx.evidence.proof.values import EPSILONS, FLOATS, OpaqueValue, Shape
from widthfold_onnx.model.proto.indices import index_limits
from widthfold_onnx.model.proto.walk import StoredTensor, copy_of, is_default, model_nodes, retain
from widthfold_onnx.text import printable

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

    Where both models apply the same functions, elements that differ count as a difference, although
    a law may make both equal: |-x| is |x|. In four cases their values in float64 decide instead:

    * One model applies other functions: a law that the proof does not know may make both equal.
    * Both hold the same nodes and constants in another order (Relu before or behind MaxPool).
    * Both round to other types (Cast), but maybe not in the same places.
    * One lacks sums or products with constants: it may have stored their rounded results.

    The order of the two models makes no difference.

    Args:
        target: a value that both compute.
        old: the original, evaluated up to this value alone.
        new: the new model, likewise.

    Returns:
        The reason; "" where the models differ.
    """
    runs = (old, new)
    values = [run.values[target] for run in runs]
    types = [run.values[target].element_type or run.table.element_type("", target) for run in runs]
    if values[0].digest() == values[1].digest() and not all(types):
        return "its element type is not known in one model"
    is_opaque = any(isinstance(value, OpaqueValue) for value in values)
    variables = {**old.shapes, **old.variables}
    merged = _merged(target, old, new, variables)
    numbers_decide = (
        old.functions != new.functions
        or is_opaque
        or any(name == "Cast" for run in runs for name, _ in run.functions)
        or _parts(old.program, target, variables) == _parts(new.program, target, variables)
    )
    if not (numbers_decide or merged):
        return ""
    pairs = _pairs_of_numbers(target, old, new, variables)
    if pairs is None:
        return _unknown(target, old, new, variables) if numbers_decide else ""
    if numbers_decide and all(_agree(*pair, MAX_ROUNDING) for pair in pairs):
        return f"the numbers agree{_operators_text(old, new, is_opaque=is_opaque)}"
    epsilons = (EPSILONS.get(kind, EPSILONS[FLOATS[2]]) for kind in types)
    limit = MAX_UNITS * max(epsilons)
    return merged if all(_agree(*pair, limit) for pair in pairs) else ""


def _parts(program: Program, target: str, variables: Mapping[str, Shape]) -> Counter[bytes]:
    """Return the nodes and constants from which a value is computed, however they are linked."""
    scope, parts = program.scope, Counter[bytes]()
    indices = scope.ancestors([target], variables)
    for index in indices:
        node = copy_of(scope.nodes[index])
        for field in ("doc_string", "input", "metadata_props", "name", "output"):
            node.ClearField(field)
        parts[node.SerializeToString(deterministic=True)] += 1
    names = {name for i in indices for name in scope.reads[i]} - set(variables)
    arrays = [program.initializer(name) for name in sorted(names)]
    parts.update(_content(array) for array in arrays if array is not None)
    return parts


def _content(array: Array) -> bytes:
    """Return the element type and what a constant holds: an array of texts holds addresses."""
    content = repr(array.tolist()).encode() if array.dtype.kind == "O" else array.tobytes()
    return array.dtype.str.encode() + content


def _unknown(target: str, old: Evaluation, new: Evaluation, variables: Mapping[str, Shape]) -> str:
    """Say why a value cannot be computed in float64; "" if nothing explains it."""
    names = {name for only in _operator_differences(old.functions, new.functions) for name in only}
    if foreign := sorted(name for name in names if "." in name):  # of a domain but onnx's own
        return f"the definition of {', '.join(foreign)} is not known"
    if any(isinstance(run.values[target], OpaqueValue) for run in (old, new)):
        return "its extents are not known"
    shapeless = {n for run in (old, new) for n in _shapeless_inputs(run, target, variables)}
    if shapeless:
        return f"the extents of {', '.join(sorted(shapeless))} are not known"
    return ""


def _merged(target: str, old: Evaluation, new: Evaluation, variables: Mapping[str, Shape]) -> str:
    """Name the operators of which one model may hold rounded results; "" if there are none.

    Such a model lacks sums, products, reciprocals or functions of constants alone, and no other
    function. It applies none that the other model does not.
    """
    values = [run.values[target] for run in (old, new)]
    operators = [_operators(run.program, target, variables) for run in (old, new)]
    for whole, part, model in ((0, 1, "new model"), (1, 0, "original")):
        runs = (old, new) if whole == 0 else (new, old)
        functions = [run.functions for run in runs]
        lone = functions[0] - functions[1]
        stored = lone & _operators_of_constants(runs[0].program, target, variables)
        if functions[1] - functions[0] or {name for name, _ in lone - stored} - INVERSES:
            continue
        difference = operators[whole] - operators[part]
        counted = WRAPPING | {name for name, _ in stored} - INVERSES
        lacking = Counter({item: n for item, n in difference.items() if item[0] in counted})
        is_merged = values[whole].constants > values[part].constants or _holds_sums(
            lacking, _new_constant_count(target, *runs, variables)
        )
        if lacking and is_merged:
            names = ", ".join(sorted({name for name, _ in lacking}))
            return f"the {model} has rounded results of {names} on constants"
    return ""


def _shapeless_inputs(run: Evaluation, target: str, variables: Mapping[str, Shape]) -> set[str]:
    """Return the inputs without known extents from which a value is computed."""
    inputs = {value.name for value in run.program.inputs} - run.shapes.keys()
    scope = run.program.scope
    reads = {name for i in scope.ancestors([target], variables) for name in scope.reads[i]}
    return set(map(printable, inputs & reads))


SUMS = frozenset({"Add", "Div", "Sub", "Sum"})
"""Operators of which a tool may store the results on constants: a sum, or the reciprocal of a
divisor. Products are known by `Elements.constants`."""


def _holds_sums(merged: Operators, new_count: int) -> bool:
    """Check whether a model that lacks some operators may hold their results as constants.

    Each operator leaves at most one constant. If more are new, one of them is no such result.
    """
    has_sums = any(name in SUMS for name, _ in merged)
    return has_sums and 0 < new_count <= merged.total()


def _new_constant_count(
    target: str, old: Evaluation, new: Evaluation, variables: Mapping[str, Shape]
) -> int:
    """Count the constants of the new model with a number that no constant of the original has.

    A constant that was moved, repeated, cast to a wider type, negated or padded has none.
    """
    known, stored = (_constants(run.program, target, variables) for run in (old, new))
    numbers = np.unique(np.concatenate([np.zeros(1), *known]))
    return sum(not _are_among(np.unique(array), numbers) for array in stored)


def _are_among(items: Array, numbers: Array) -> bool:
    """Check whether sorted items are all among sorted numbers; `np.isin` would sort these again."""
    places = np.searchsorted(numbers, items).clip(max=numbers.size - 1)
    return bool((numbers[places] == items).all())


def _constants(program: Program, target: str, variables: Mapping[str, Shape]) -> list[Array]:
    """Return the magnitudes of each constant of floats from which a value is computed."""
    scope = program.scope
    indices = scope.ancestors([target], variables)
    names = {target, *(name for i in indices for name in scope.reads[i])} - set(variables)
    arrays = [program.initializer(name) for name in sorted(names)]
    arrays += [constant(scope.nodes[i], program) for i in indices]
    return [
        np.abs(array.astype(np.float64)).ravel()
        for array in arrays
        if array is not None and helper.np_dtype_to_tensor_dtype(array.dtype) in FLOATS
    ]


def _pairs_of_numbers(
    target: str, old: Evaluation, new: Evaluation, variables: Mapping[str, Shape]
) -> list[tuple[Array, Array]] | None:
    """Compute a value in float64 in both models; None where that is not possible.

    A run takes one branch of an If. So models with an If run again with every condition true, and
    with every condition false; that is left out where neither model runs so.
    """
    chooses = any(name == "If" for run in (old, new) for name, _ in run.functions)
    tables = old.table, new.table
    types = {n: max(table.element_type("", n) for table in tables) for n in variables}
    pairs: list[tuple[Array, Array]] = []
    for condition in (None, True, False) if chooses else (None,):
        first, other = (
            _numbers(run.program, target, variables, types, condition) for run in (old, new)
        )
        if first is not None and other is not None:
            pairs.append((first, other))
        elif condition is None or first is not None or other is not None:
            return None
    return pairs


def _agree(old: Array, new: Array, limit: float) -> bool:
    """Check that numbers differ by at most a fraction of the largest of their channel.

    NaN is equal to NaN, and an Inf to itself.
    """
    if old.shape != new.shape:
        return False
    axes = tuple(axis for axis in range(old.ndim) if axis != 1)  # each channel by itself
    is_same = (old == new) | (np.isnan(old) & np.isnan(new))
    with np.errstate(invalid="ignore"):  # Inf less Inf
        distance = np.where(is_same, 0, np.abs(old - new)).max(axes, initial=0)
    finite = [np.where(np.isfinite(array), np.abs(array), 0) for array in (old, new)]
    largest = np.maximum(*finite).max(axes, initial=0)
    return bool((distance <= limit * largest).all())


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


def _operators_of_constants(
    program: Program, target: str, variables: Mapping[str, Shape]
) -> Operators:
    """Count the operators that a model applies to constants alone."""
    nodes = (program.scope.nodes[i] for i in program.scope.ancestors([target], variables))
    return Counter(
        (operator(node), program.version(node))
        for node in nodes
        if program.constant_values.issuperset(filter(None, node.output))
    )


def _operators_text(old: Evaluation, new: Evaluation, *, is_opaque: bool) -> str:
    """Say what tells apart two models whose numbers agree."""
    old_only, new_only = (
        ", ".join(names) for names in _operator_differences(old.functions, new.functions)
    )
    if old_only and new_only:
        return f", but the original applies {old_only}, the new model {new_only}"
    if old_only or new_only:
        model = "original" if old_only else "new model"
        return f", but only the {model} applies {old_only or new_only}"
    if is_opaque:
        return ", but its extents are not known"
    if any(name == "Cast" for name, _ in old.functions):
        return ", but Casts round at other places"
    names = sorted({name for name, _ in old.functions})
    return f", but {', '.join(names)} may be applied in another order"


def _numbers(
    program: Program,
    target: str,
    variables: Mapping[str, Shape],
    types: Mapping[str, int],
    condition: bool | None = None,
) -> Array | None:
    """Compute a value in float64, under one condition of every If unless it is None.

    Returns:
        The value; None where the reference implementation cannot compute it, or it is no number.
    """
    scope = program.scope
    indices = scope.ancestors([target], variables)
    operands = {target, *(name for i in indices for name in scope.reads[i])}
    names = variables_of(program, target, variables)
    stored = {name: program.scope.initializers.get(name) for name in operands - names}
    constants = [_dense(program, tensor, name) for name, tensor in stored.items() if tensor]
    inputs = [helper.make_tensor_value_info(name, FLOATS[3], None) for name in sorted(names)]
    outputs = [helper.make_tensor_value_info(target, FLOATS[3], None)]
    nodes = [program.scope.nodes[i] for i in indices]
    segment = helper.make_graph(nodes, "segment", inputs, outputs, constants)
    model = helper.make_model(segment, opset_imports=program.proto.opset_import)
    _seed(model)
    if condition is not None:
        _decide(model, condition)
    limits = index_limits(model)
    feeds = {name: _random(name, variables[name], types[name], limits.get(name)) for name in names}
    try:
        with np.errstate(all="ignore"):
            (result,) = evaluator(model).run(None, feeds)
    except Exception:
        # It raises a different error for every operator that it does not know or cannot compute.
        note_swallowed(f"no numbers in float64 for {target}")
        return None
    is_numeric = isinstance(result, np.ndarray | np.generic) and result.dtype.kind in "biuf"
    return np.asarray(result, np.float64) if is_numeric else None


def _dense(program: Program, tensor: StoredTensor, name: str) -> onnx.TensorProto:
    """Return an initializer with its numbers inside; texts as they are, with all their bytes."""
    if isinstance(tensor, onnx.TensorProto) and tensor.data_type == onnx.TensorProto.STRING:
        return tensor
    return numpy_helper.from_array(program.read(tensor), name)


def _decide(model: onnx.ModelProto, condition: bool) -> None:
    """Give every If of a model one condition."""
    name = "the condition of every If"
    model.graph.initializer.append(numpy_helper.from_array(np.array(condition), name))
    for node in model_nodes(model):
        if is_default(node, "If"):
            node.input[0] = name


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
