"""What a folded convolution reads besides its data and what is folded for it."""

from __future__ import annotations

from widthfold_onnx.evidence.chain import Mismatch
from widthfold_onnx.evidence.claims import content, read
from widthfold_onnx.evidence.rewritten import Rewritten
from widthfold_onnx.evidence.wanted import Wanted
from widthfold_onnx.model.graph import Node
from widthfold_onnx.rules.parameter import dequantizer, input_of
from widthfold_onnx.text import printable


def check_passed_on(graph: Rewritten, wanted: Wanted, conv: Node) -> None:
    """Check what a folded node reads besides data and what is folded: all that the original reads.

    Where weight or bias are dequantized, the integers, scales and zero points must be the fold of
    the original's one by one: other integers with other scales may give the same floats.

    Raises:
        Mismatch: something else is read.
    """
    node, site = wanted.site.node, wanted.site
    for index in range(max(len(node.inputs), len(conv.inputs))):
        if index == site.data_index:
            continue
        one, other = input_of(node, index), input_of(conv, index)
        olds, maker = site.leaves(one), dequantizer(other)
        news = [other] if olds == [one] else [] if maker is None else list(maker.inputs)
        if [v is None for v in olds] != [v is None for v in news]:
            raise Mismatch(f"input {index} is not made of what the original's is made of")
        for old, new in zip(olds, news, strict=True):
            if old is None or new is None or (len(olds) == 1 and index in wanted.places):
                continue
            if old is site.parameter or old in site.per_channel:
                folded = site.folded(old, read(graph.old, old), wanted.fold)
                if content(folded) != content(read(graph.new, new)):
                    raise Mismatch(f"{printable(new.name or '')} is not the fold of the original's")
            elif not graph.alike(old, new):
                raise Mismatch(f"{printable(old.name or '')} is another on both sides")
