"""Choose inputs with which a model shows something, and name the branches that none reached.

* `controls`: values of small inputs. Scalars and small vectors are often limits, thresholds, rates
  or switches, and random values of these may mask every output.
* `filling`: inputs that cover the range of the quantizers that read them. Numbers of other
  distributions seldom get near both ends of the range, where sums of 8 bits saturate
  (`runtime.kernels`) and weights have most effect.
* `all_windows_fit`: sizes at which every layer has something to compute.
* `unreached`: branches that ran on no input set, so nothing was compared there.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from widthfold_onnx.arrays import Array
from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.parity.exact_kernels import holds_bytes
from widthfold_onnx.evidence.parity.outputs import says_nothing
from widthfold_onnx.evidence.parity.runs import Outputs
from widthfold_onnx.model.graph.constants import Constant
from widthfold_onnx.model.graph.document import Document, Node, Value
from widthfold_onnx.model.loader import load
from widthfold_onnx.model.proto.functions import flat
from widthfold_onnx.model.proto.walk import all_nodes, inputs, is_default, subgraphs
from widthfold_onnx.model.shapes.table import ShapeTable
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.options import RuntimeOptions, Shapes
from widthfold_onnx.rules.match.dequantized import REMOVED, SELECTING
from widthfold_onnx.runtime.inputs.recorded import InputSet
from widthfold_onnx.runtime.sessions.session import Level, Session, open_session
from widthfold_onnx.text import printable

SMALL = 4
"""Scalars and vectors of at most so many elements are tried."""

VALUES = (0.0, 1.0, 0.1, 10.0, 100.0, 1e4, 1e6)
"""Values of an element; all pairs are tried, so two scalars come in both orders."""

TRIES = 64
"""Combinations that are tried, chosen at random where there are more."""


def shown(outputs: Outputs) -> int:
    """Count the outputs that show something."""
    return sum(not says_nothing(value) for value in outputs.values())


def controls(session: Session, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Return values of the small inputs with which most outputs show something, {} if none does.

    Args:
        session: of the original.
        feeds: a random input set.
    """
    chosen = {port.name for port in session.inputs if port.value}
    small = {
        name: x
        for name, x in feeds.items()
        if name not in chosen and x.ndim <= 1 and x.size <= SMALL and x.dtype.kind in "fiub"
    }
    best: dict[str, Array] = {}
    most = 0
    for values in _combinations(sum(x.size for x in small.values())) if small else ():
        rest = iter(values)
        tried = {
            name: np.array([next(rest) for _ in range(x.size)]).reshape(x.shape).astype(x.dtype)
            for name, x in small.items()
        }
        try:
            outputs = session.run({**feeds, **tried})
        except UnverifiedError:
            continue
        if shown(outputs) > most:
            best, most = tried, shown(outputs)
        if most == len(outputs):
            break
    return best


def _combinations(count: int) -> Iterator[tuple[float, ...]]:
    if len(VALUES) ** count <= TRIES:
        yield from product(VALUES, repeat=count)
        return
    rng = np.random.default_rng(count)
    for _ in range(TRIES):
        yield tuple(rng.choice(VALUES, count))


LABEL = "whole range of the quantizers"


def filling(model: Path, like: InputSet) -> InputSet | None:
    """Return a set that fills the range of every quantizer of the inputs, None if there is none.

    Args:
        model: the file.
        like: gives the shapes, and the data of all other inputs.
    """
    loaded = load(model)
    if not holds_bytes(loaded.proto):
        return None
    document = Document(loaded.proto, loaded.folder, OPERATORS)
    ranges: dict[str, tuple[float, float]] = {}
    for _, node in document.nodes({("", "QuantizeLinear")}):
        name, interval = _source(node.inputs[0]), _range(document, node)
        if name in like.feeds and interval is not None:
            low, high = ranges.get(name, interval)
            ranges[name] = min(low, interval[0]), max(high, interval[1])
    feeds = {name: _uniform(name, like.feeds[name], *ends) for name, ends in ranges.items()}
    return replace(like, label=LABEL, feeds={**like.feeds, **feeds}) if feeds else None


def _source(value: Value | None) -> str:
    """Return the name of the value whose elements were only moved or selected since."""
    while value is not None and (node := value.producer()) is not None:
        if not is_default(node, *SELECTING, *REMOVED):
            break
        value = node.inputs[0]
    return "" if value is None else value.name or ""


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


def _uniform(name: str, like: Array, low: float, high: float) -> Array:
    generator = np.random.default_rng([*name.encode()])
    return np.asarray(generator.uniform(low, high, like.shape)).astype(like.dtype)


def all_windows_fit(model: onnx.ModelProto, shapes: Shapes) -> bool:
    """Check that the windows of all pools and Convs of the main graph fit into their inputs.

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


SHAPES = ("Shape", "Size")
"""Operators that return extents, whatever the elements are."""


def unreached(
    model: onnx.ModelProto, origin: Path, how: RuntimeOptions, sets: Sequence[InputSet]
) -> list[str]:
    """Return the branches, chosen by elements of inputs, that no input set reaches.

    Args:
        model: the model, without its external data.
        origin: file of the model.
        how: where it runs.
        sets: input sets on which it runs.

    Raises:
        UnverifiedError: it does not run.
    """
    copy, names = _marked(model)
    if not names:
        return []
    with tempfile.TemporaryDirectory() as folder:
        session = open_session(
            copy, how, Level.DISABLED, origin=origin, profile=Path(folder, "profile")
        )
        for item in sets:
            session.run(item.feeds)
        events = json.loads(session.end_profile().read_bytes(), strict=False)
    ran = {event["name"].rpartition("/")[0] for event in events}
    return [branch for mark, branch in names.items() if mark not in ran]


def _marked(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Rename the nodes of each branch that elements of inputs choose.

    Returns:
        A copy of the model, and by the folder of their new names how the branch is called.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(flat(model))
    chosen = {value.name for value in inputs(copy)}
    _spread(copy.graph, chosen)
    names: dict[str, str] = {}
    for node in all_nodes(copy.graph.node):
        if node.op_type == "If" and node.input[0] in chosen:
            for place, body in subgraphs(node.attribute):
                mark = f"widthfold/branch {len(names)}"
                names[mark] = f"{place} of {printable(node.name or node.output[0])}"
                for number, inner in enumerate(body.node):
                    inner.name = f"{mark}/{number}"
    return copy, names


def _spread(graph: onnx.GraphProto, chosen: set[str]) -> None:
    """Add the values that depend on elements of the chosen ones, not on extents alone."""
    for node in graph.node:
        depends = node.op_type not in SHAPES and any(name in chosen for name in node.input)
        for _, body in subgraphs(node.attribute):
            if depends:
                chosen.update(value.name for value in body.input)
            _spread(body, chosen)
            depends = depends or any(value.name in chosen for value in body.output)
        if depends:
            chosen.update(name for name in node.output if name)
