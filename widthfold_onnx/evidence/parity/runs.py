"""Choose inputs with which a model shows something, and run models on them.

Random numbers may show nothing: scalars and small vectors are often limits, rates or switches, and
a random value of one may mask every output (`revealing_values`). Where a quantizer reads an input,
one set covers its whole range (`filling_set`): other numbers seldom get near both ends, where sums
of 8 bits saturate (`runtime.kernels`) and weights have most effect. Branches that no set reaches
are named.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from widthfold_onnx.arrays import Array
from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.exact_kernels import holds_bytes, open_exact
from widthfold_onnx.evidence.parity.outputs import Outputs, why_meaningless
from widthfold_onnx.evidence.parity.products import ProductCount
from widthfold_onnx.model.constants import Constant
from widthfold_onnx.model.document import Document, Node, Value
from widthfold_onnx.model.loader import LoadedModel
from widthfold_onnx.model.proto import walk
from widthfold_onnx.model.proto.functions import without_functions
from widthfold_onnx.model.shapes.table import ShapeTable
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.options import RuntimeOptions, Shapes, VerifyOptions
from widthfold_onnx.progress import Step, progress
from widthfold_onnx.rules.quantization import before_moves
from widthfold_onnx.runtime.inputs.cases import MAX_SMALL
from widthfold_onnx.runtime.inputs.feeds import InputSet, with_small_integers
from widthfold_onnx.runtime.inputs.input_sets import InputSets, input_sets
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.runtime.session import Session, open_session
from widthfold_onnx.text import printable

MIN_FILE_BYTES = 1 << 26
"""Outputs of this size and above are kept in files."""


MAX_COMPARED_PRODUCTS = 1 << 34
"""Most products of a run at the much longer size that is compared; a core takes a second or two."""


@dataclass(frozen=True)
class Runs:
    """The runs of a model on several input sets.

    Attributes:
        outputs: of each set; none if the model does not run on all of them.
        failure: why it does not run, "" if it does.
    """

    outputs: list[Outputs] = field(default_factory=list)
    failure: str = ""


def run_once(session: Session, item: InputSet) -> Outputs:
    """Return the outputs on one set; large ones lie in files, as outputs of all runs are kept.

    Raises:
        UnverifiedError: the model stops, an output is no tensor, or there is no room for it.
    """
    return {name: _in_file(array) for name, array in session.run(item.feeds).items()}


def _in_file(array: Array) -> Array:
    if array.nbytes < MIN_FILE_BYTES or array.dtype.hasobject:
        return array
    with tempfile.TemporaryFile() as file:  # without a name
        try:
            file.write(np.ascontiguousarray(array).view(np.uint8).data)
            file.flush()
        except OSError as error:  # a full disk would end a process that writes into a mapping
            raise UnverifiedError(f"no room for an output in a file: {error.strerror}") from error
        return np.memmap(file, array.dtype, "r", shape=array.shape)


def attempt(
    model: LoadedModel | Callable[[], onnx.ModelProto],
    options: RuntimeOptions,
    level: Level,
    sets: Iterable[InputSet],
    open_model: Callable[
        [LoadedModel | onnx.ModelProto, RuntimeOptions, Level], Session
    ] = open_exact,
) -> Runs:
    """Run a model on input sets, by default with exact integers.

    A model was read from a file, or is a function that copies the original in memory and is called
    before the first set is read. Each run is a step.
    """
    name = printable(model.name) if isinstance(model, LoadedModel) else "copy of the original"
    outputs: list[Outputs] = []
    try:
        session = open_model(model if isinstance(model, LoadedModel) else model(), options, level)
        for item in sets:
            progress(Step(f"{name}, level {level}: {item.label}"))
            outputs.append(run_once(session, item))
    except UnverifiedError as error:
        return Runs(failure=str(error))
    return Runs(outputs)


VALUES = (0.0, 1.0, 0.1, 10.0, 100.0, 1e4, 1e6)
"""Values of an element; all pairs are tried, so two scalars come in both orders."""

TRIES = 64
"""Combinations that are tried, chosen at random where there are more."""

SHAPE_OPERATORS = ("Shape", "Size")
"""Operators that return extents, whatever the elements are."""


def run_on_inputs(
    original: LoadedModel, session: Session, options: VerifyOptions
) -> tuple[InputSets, list[Outputs]]:
    """Choose input sets, and return them with the outputs of the model on each.

    Args:
        original: the model.
        session: a session of the model.
        options: stored inputs, shapes and seeds.

    Raises:
        UnverifiedError: it stops on the first set or on a stored one.
        UsageError: stored inputs or shapes that do not fit it.
    """
    count = ProductCount(original.proto)
    inputs = input_sets(
        session,
        options,
        lambda shapes: all_windows_fit(original.proto, shapes),
        lambda shapes: count.at(shapes) <= MAX_COMPARED_PRODUCTS,
    )
    random_set = next((item for item in inputs.sets if item.random), None)
    if random_set is not None and (item := filling_set(original, random_set)) is not None:
        inputs = replace(inputs, sets=[*inputs.sets, item])
    inputs, outputs = _run(session, inputs)
    if (
        random_set is not None
        and not any(map(meaningful_count, outputs))
        and (values := revealing_values(session, random_set.feeds))
    ):
        inputs, outputs = _run(session, _with_values(inputs, values))
    if branches := unreached_branches(original, options, inputs.sets):
        remark = f"no input set reached {', '.join(branches)}"
        inputs = replace(inputs, remarks=[*inputs.remarks, remark])
    return inputs, outputs


def _run(session: Session, inputs: InputSets) -> tuple[InputSets, list[Outputs]]:
    """Run the model on each set; each run is a step.

    A random set on which it stops runs again with integers of 0 and 1, which may be indices; where
    it stops on that, too, the set is left out.
    """
    usable_sets: list[InputSet] = []
    outputs: list[Outputs] = []
    remarks = [*inputs.remarks]
    queue = deque(inputs.sets)
    while queue:
        item = queue.popleft()
        try:
            progress(Step(f"original: {item.label}"))
            outputs.append(run_once(session, item))
        except UnverifiedError as error:
            if item.random and (tame := with_small_integers(item)) is not item:
                queue.appendleft(tame)
            elif item.random and usable_sets:
                remarks.append(f"left out {item.label}: {error}")
            else:
                raise
        else:
            usable_sets.append(item)
    return replace(inputs, sets=usable_sets, remarks=remarks), outputs


def _with_values(inputs: InputSets, values: dict[str, Array]) -> InputSets:
    """Set some inputs of all random sets to values, and say so."""
    sets = [
        replace(item, feeds=item.feeds | values) if item.random else item for item in inputs.sets
    ]
    values_text = ", ".join(f"{printable(name)} {x.tolist()}" for name, x in values.items())
    remark = f"random values of small inputs show nothing; they are {values_text}"
    return replace(inputs, sets=sets, remarks=[*inputs.remarks, remark])


def meaningful_count(outputs: Outputs) -> int:
    """Count the outputs that show something."""
    return sum(not why_meaningless(value) for value in outputs.values())


def revealing_values(session: Session, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Return values of the small inputs with which most outputs show something, {} if none does.

    Args:
        session: of the original.
        feeds: a random input set.
    """
    control_names = {port.name for port in session.inputs if port.value}
    small_inputs = {
        name: x
        for name, x in feeds.items()
        if name not in control_names
        and x.ndim <= 1
        and x.size <= MAX_SMALL
        and x.dtype.kind in "fiub"
    }
    best_values: dict[str, Array] = {}
    best_count = 0
    for values in _combinations(sum(x.size for x in small_inputs.values())) if small_inputs else ():
        numbers = iter(values)
        trial = {
            name: np.array([next(numbers) for _ in range(x.size)]).reshape(x.shape).astype(x.dtype)
            for name, x in small_inputs.items()
        }
        try:
            outputs = session.run({**feeds, **trial})
        except UnverifiedError:
            continue
        if meaningful_count(outputs) > best_count:
            best_values, best_count = trial, meaningful_count(outputs)
        if best_count == len(outputs):
            break
    return best_values


def _combinations(count: int) -> Iterator[tuple[float, ...]]:
    if len(VALUES) ** count <= TRIES:
        yield from product(VALUES, repeat=count)
        return
    rng = np.random.default_rng(count)
    for _ in range(TRIES):
        yield tuple(rng.choice(VALUES, count))


FILLING_LABEL = "whole range of the quantizers"


def filling_set(loaded: LoadedModel, template: InputSet) -> InputSet | None:
    """Return a set that fills the range of each quantizer of an input, None without a quantizer.

    Args:
        loaded: the model.
        template: gives the shapes, and the data of all other inputs.
    """
    if not holds_bytes(loaded.proto):
        return None
    document = Document(loaded.proto, loaded.folder, OPERATORS)
    ranges: dict[str, tuple[float, float]] = {}
    for _, node in document.nodes({("", "QuantizeLinear")}):
        source, _ = before_moves(node.inputs[0])
        name, interval = None if source is None else source.name, _range(document, node)
        if name is not None and name in template.feeds and interval is not None:
            low, high = ranges.get(name, interval)
            ranges[name] = min(low, interval[0]), max(high, interval[1])
    feeds = {name: _uniform(name, template.feeds[name], *ends) for name, ends in ranges.items()}
    return (
        replace(template, label=FILLING_LABEL, feeds={**template.feeds, **feeds}) if feeds else None
    )


def _range(document: Document, node: Node) -> tuple[float, float] | None:
    """Return the range that a quantizer represents, if its numbers are constant scalars."""
    arrays = [_scalar(document, value) for value in node.inputs[1:] if value is not None]
    scale, zero = (*arrays, _default_zero(node))[:2]
    if scale is None or zero is None or zero.dtype.kind not in "iu":
        return None
    limits = np.iinfo(zero.dtype)
    first, last = ((end - int(zero)) * float(scale) for end in (limits.min, limits.max))
    return (min(first, last), max(first, last)) if math.isfinite(last - first) else None


def _default_zero(node: Node) -> Array:
    """Return the default zero point of a quantizer; since opset 21 an attribute gives its type."""
    kind = node.attributes.get_int("output_dtype", 0)
    return np.zeros((), helper.tensor_dtype_to_np_dtype(kind) if kind else np.uint8)


def _scalar(document: Document, value: Value) -> Array | None:
    constant = document.constant(value)
    if not isinstance(constant, Constant) or math.prod(constant.shape) != 1:
        return None
    return document.read(constant).reshape(())


def _uniform(name: str, template: Array, low: float, high: float) -> Array:
    generator = np.random.default_rng([*name.encode()])
    return np.asarray(generator.uniform(low, high, template.shape)).astype(template.dtype)


def all_windows_fit(model: onnx.ModelProto, shapes: Shapes) -> bool:
    """Check that windows fit into their inputs: of all pools, and of Convs that state their kernel.

    The runtime computes a MaxPool of 2 positions on one position, outside of its data (1.32.0).
    """
    table = ShapeTable(model, shapes)
    for node in model.graph.node:
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        extents = table.extents("", node.input[0]) if "kernel_shape" in attributes else None
        if extents is None or attributes.get("auto_pad", b"").startswith(b"SAME"):
            continue
        kernel = np.array(attributes["kernel_shape"])
        pads = np.array(attributes.get("pads", [0] * 2 * kernel.size)).reshape(2, -1).sum(0)
        reach = (kernel - 1) * attributes.get("dilations", 1) + 1
        if node.op_type != "ConvTranspose" and (extents[2:] + pads < reach).any():
            return False
    return True


def unreached_branches(
    model: LoadedModel, options: RuntimeOptions, sets: Sequence[InputSet]
) -> list[str]:
    """Return the branches, chosen by elements of inputs, that no input set reaches.

    Args:
        model: the model.
        options: where it runs.
        sets: input sets on which it runs.

    Raises:
        UnverifiedError: it does not run.
    """
    copy, names = _marked_copy(model.proto)
    if not names:
        return []
    with tempfile.TemporaryDirectory() as folder:
        session = open_session(
            copy, options, Level.DISABLED, source=model.path, profile=Path(folder, "profile")
        )
        for item in sets:
            session.run(item.feeds)
        events = json.loads(session.end_profile().read_bytes(), strict=False)
    marks = {event["name"].rpartition("/")[0] for event in events}
    return [branch for mark, branch in names.items() if mark not in marks]


def _marked_copy(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Rename the nodes of each branch that elements of inputs choose.

    Returns:
        A copy of the model, and the name of each branch by the mark that begins its node names.
    """
    copy = walk.copy_of(without_functions(model))
    values = {value.name for value in walk.inputs(copy)}
    _add_dependents(copy.graph, values)
    names: dict[str, str] = {}
    for node in walk.all_nodes(copy.graph.node):
        if node.op_type == "If" and node.input[0] in values:
            for place, body in walk.subgraphs(node.attribute):
                mark = f"widthfold/branch {len(names)}"
                names[mark] = f"{place} of {printable(node.name or node.output[0])}"
                for number, inner in enumerate(body.node):
                    inner.name = f"{mark}/{number}"
    return copy, names


def _add_dependents(graph: onnx.GraphProto, values: set[str]) -> None:
    """Add the values that depend on elements of `values`, not on their extents alone."""
    for node in graph.node:
        depends = node.op_type not in SHAPE_OPERATORS and any(name in values for name in node.input)
        for _, body in walk.subgraphs(node.attribute):
            if depends:
                values.update(value.name for value in body.input)
            _add_dependents(body, values)
            depends = depends or any(value.name in values for value in body.output)
        if depends:
            values.update(name for name in node.output if name)
