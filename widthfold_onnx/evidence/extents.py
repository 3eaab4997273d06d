"""What the extents of a folded node's data must be where the original leaves them open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.branches import FOLDED, choices
from widthfold_onnx.evidence.chain import Mismatch
from widthfold_onnx.evidence.claims import fold_record
from widthfold_onnx.evidence.elsewhere import Place
from widthfold_onnx.evidence.product_pair import open_positions
from widthfold_onnx.evidence.rewritten import Rewritten, label
from widthfold_onnx.model.constants import Constant
from widthfold_onnx.model.declared import Dims
from widthfold_onnx.model.graph import Node, Value
from widthfold_onnx.options import EXTENTS
from widthfold_onnx.results import ExactSite
from widthfold_onnx.rewrite.record import FOLD_KEY, FoldRecord
from widthfold_onnx.rules.guarding import EXACT, Extent
from widthfold_onnx.rules.quantized_product import PRODUCT_INPUTS


def unguarded_folds(
    model: onnx.ModelProto,
    folded: Mapping[Place, tuple[Rewritten, Node]],
) -> Iterator[ExactSite]:
    """Folds that need a certain extent, of which the model says nothing and nothing tests it.

    Where the fold's own Reshapes have the number in them, they fail at any other.
    """
    guarded = {
        (choice.path, node.output[0])
        for choice in choices(model.graph)
        if EXTENTS in choice.purpose
        for node in choice.nodes(FOLDED)
    }
    for place, (graph, node) in folded.items():
        if place in guarded or FOLD_KEY not in node.metadata_props:
            continue
        try:
            known = graph.original(node)
            value = (
                None if known is None or not known.inputs else graph.claim(source_of(graph, node))
            )
            if value is None or value.state is not None:
                continue
            needed = needed_by_fold(graph, node, value.value)
        except (Mismatch, UnverifiedError):
            continue  # it is said of the node itself
        several = ambiguous(graph, node)
        for axis, extent in needed.items():
            if extent.modulus != EXACT:
                reason = f"nothing tests that {extent.modulus} divides axis {axis} of its data"
            elif axis in several:
                reason = f"nothing tests that axis {axis} of its data is {extent.offset}"
            else:
                continue
            yield ExactSite(node=label(node), verdict="different", reason=reason, guard=True)


def ambiguous(graph: Rewritten, node: Node) -> set[int]:
    """Axes of the data of which a folded node and its moves take several extents.

    They are folded on the output alone, so that no Reshape before the node has their extent in it.
    At a stride several of them give outputs of one extent; and a pixel shuffle takes any.
    """
    record = fold_record(node.metadata_props[FOLD_KEY])
    if not isinstance(record, FoldRecord):
        return set()
    strides = [1] * len(record.axes)
    if "strides" in node.attributes:
        strides = [*node.attributes["strides"].as_ints()[record.lift :]]
    shuffled = any(n.op_type == "DepthToSpace" and graph.owner(n) is node for n in graph.nodes)
    return {
        i
        for i, (axis, stride) in enumerate(zip(record.axes, strides, strict=False), start=2)
        if axis.in_digits == 1 and (shuffled or stride > 1)
    }


def source_of(graph: Rewritten, node: Node) -> Value:
    """The value that a folded node reads, before the moves that belong to it."""
    slots = PRODUCT_INPUTS[node.op_type].operands if node.op_type in PRODUCT_INPUTS else (0,)
    for value in (node.inputs[slot] for slot in slots if slot < len(node.inputs)):
        # Of a product the weight may be on the left.
        if value is not None and not isinstance(graph.new.constant(value), Constant):
            return graph.line_to(value)[0]
    raise Mismatch("it reads nothing")


def needed_by_fold(graph: Rewritten, node: Node, value: str) -> dict[int, Extent]:
    """What the extents of the data must be by the record of a folded node, where they are open.

    Raises:
        Mismatch: the record does not fit, or cannot be read.
    """
    record = fold_record(node.metadata_props[FOLD_KEY])
    if isinstance(record, FoldRecord):
        digits = [record.batch, 1, *(axis.in_digits for axis in record.axes)]
        planned = [record.samples, None, *(axis.length for axis in record.axes)]
        moved = [record.batch, 1, *(axis.in_digits * axis.out_digits for axis in record.axes)]
    else:
        known = graph.original(node)
        if known is None:
            raise Mismatch("the original has no such node")
        axis, rest = open_positions(graph, known, node, record)
        planned = list(record.shape)
        digits = [rest if i == axis else 1 for i in range(len(planned))]
        moved = [
            rest if extent is None else 2 for extent, rest in zip(planned, digits, strict=True)
        ]
    needed = {
        axis: Extent(0, digits[axis]) if extent is None else Extent(extent, EXACT)
        for axis, extent in enumerate(planned)
        if moved[axis] > 1 and (extent is not None or digits[axis] > 1)
    }
    fixed = fixed_extents(graph, value, len(digits)) if needed else ()
    return {axis: extent for axis, extent in needed.items() if fixed[axis] is None}


def fixed_extents(graph: Rewritten, value: str, rank: int) -> Dims:
    """Extents of a value that the original itself fixes."""
    assert graph.before is not None
    dims = graph.old.shapes.get(graph.before.path, value)
    return (None,) * rank if dims is None or len(dims) != rank else dims
