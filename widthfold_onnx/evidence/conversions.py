"""The moves between a folded node and others: do they return what they claim?"""

from __future__ import annotations

from widthfold_onnx.evidence.chain import Mismatch, check_moves, replay
from widthfold_onnx.evidence.claims import every_concrete
from widthfold_onnx.evidence.requantized import moves_of
from widthfold_onnx.evidence.requantized_data import without_pair
from widthfold_onnx.evidence.rewritten import CONVERSIONS, Rewritten
from widthfold_onnx.model.graph import Node
from widthfold_onnx.rewrite.record import FOLD_KEY
from widthfold_onnx.rules.dequantized import exact_dequantizer
from widthfold_onnx.text import printable


def check_conversion(graph: Rewritten, node: Node) -> None:
    """Check the chain of moves that ends with a node, unless it belongs to a folded node.

    Raises:
        Mismatch: it does not return what it claims.
    """
    given = node.inputs[0] if node.inputs else None
    end = graph.claim(node.outputs[0])
    if given is None or len(node.outputs) != 1:
        raise Mismatch(f"{printable(node.op_type)} does more than move elements")
    if end is None:
        return  # it stands inside of a chain
    source, before = graph.line_to(given)
    line = [*before, node]
    start, maker = graph.claim(source), source.producer()
    if start is None and maker is not None and FOLD_KEY in maker.metadata_props:
        return  # it belongs to that node
    if start is None:
        raise Mismatch("it comes from nowhere")
    shapes = [claim.shape for claim in (start, end) if claim.state is not None]
    if start.value != end.value or not shapes or shapes[0] != shapes[-1]:
        raise Mismatch(f"it makes {printable(end.value)} of {printable(start.value)}")
    line = moves_of(graph.new, line)
    made_by = exact_dequantizer(graph.old, graph.value(start.value))
    line = without_pair(graph.old, graph.new, made_by, line)
    messages = [graph.new.message(n) for n in line]
    check_moves(messages, CONVERSIONS)
    constants = graph.constants(line)
    for shape in every_concrete(shapes[0]):
        labels = replay(messages, constants, graph.new.opset, start.labels(shape))
        expected = end.labels(shape)
        if labels.shape != expected.shape or (labels != expected).any():
            raise Mismatch(f"it returns {printable(end.value)} in another state than it says")
