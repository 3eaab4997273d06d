"""What quantizes folded data again (`rules.dequantized`) changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from widthfold_onnx.evidence.chain import Mismatch
from widthfold_onnx.evidence.claims import content, read
from widthfold_onnx.model.domain import is_default
from widthfold_onnx.model.graph import Document, Node
from widthfold_onnx.refusal import Refusal

PAIR = ("QuantizeLinear", "DequantizeLinear")


def without_pair(
    old: Document, new: Document, maker: Node | Refusal | None, line: Sequence[Node]
) -> list[Node]:
    """Moves of a fold or unfold, without the pair at their end if what they move was dequantized.

    `maker` gives back every number that is quantized with its own scale and zero point. Moves make
    no other numbers, but for the 0 that a Pad appends, which is the zero point. So the pair changes
    nothing if it has the same two.

    Args:
        old: the original.
        new: the rewritten model.
        maker: what `exact_dequantizer` says of what is moved.
        line: the new nodes.

    Raises:
        Mismatch: the pair is not there, or it has other numbers.
    """
    if not isinstance(maker, Node) or not line:
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
            if content(read(old, one)) != content(read(new, other)):
                raise Mismatch(f"{op_type} has another scale or zero point")
    return moves
