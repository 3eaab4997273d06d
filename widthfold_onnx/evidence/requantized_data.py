"""What quantizes folded data again (`rules.dequantized`) changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from widthfold_onnx.evidence.chain import Mismatch
from widthfold_onnx.evidence.claims import content, read
from widthfold_onnx.evidence.rewritten import Rewritten
from widthfold_onnx.model.domain import is_default
from widthfold_onnx.model.graph import Node

PAIR = ("QuantizeLinear", "DequantizeLinear")


def without_pair(graph: Rewritten, maker: Node | None, line: Sequence[Node]) -> list[Node]:
    """The moves before a folded node, without the pair at their end if the data was dequantized.

    The site was read, so `maker` gives back every number that is quantized with its own scale and
    zero point. Moves make no other numbers, but for the 0 that a Pad appends, which is the zero
    point. So the pair changes nothing if it has the same two.

    Args:
        graph: both graphs.
        maker: the site's DequantizeLinear (`LinearSite.dequantizer`).
        line: the new nodes before the folded one.

    Raises:
        Mismatch: the pair is not there, or it has other numbers.
    """
    if maker is None or not line:
        return list(line)
    moves, pair = list(line[:-2]), line[-2:]
    kinds = [node.op_type for node in pair]
    if kinds != list(PAIR):
        raise Mismatch("folded data is not quantized again")
    for node, op_type in zip(pair, PAIR, strict=True):
        if not is_default(node, op_type):
            raise Mismatch(f"{op_type} is of another domain")
        if node.attributes or len(node.inputs) != len(maker.inputs):
            raise Mismatch(f"{op_type} has other attributes or inputs")
        for one, other in zip(maker.inputs[1:], node.inputs[1:], strict=True):
            if one is None or other is None:
                raise Mismatch(f"{op_type} lacks an input")
            if content(read(graph.old, one)) != content(read(graph.new, other)):
                raise Mismatch(f"{op_type} has another scale or zero point")
    return moves
