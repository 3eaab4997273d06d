"""Finds inputs on which the original itself leaves the range of its numbers.

A structural zero times Inf is NaN, so a fold spreads a non-finite value to its neighbours, by
design and within one sample. Random inputs may be larger than the model was made for;
where they make the original overflow at a linear node that changed, a difference shows nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.eight_bits.exact_kernels import open_exact
from widthfold_onnx.evidence.parity.comparison import Outputs
from widthfold_onnx.evidence.parity.reference import Reference
from widthfold_onnx.evidence.proof.correspondence import Correspondence
from widthfold_onnx.evidence.proof.program import program
from widthfold_onnx.model.proto.domain import operator_of
from widthfold_onnx.model.proto.scope import describe_node
from widthfold_onnx.model.read.loader import load_with_data
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.runtime.sessions.session import Level

MAX_BYTES = 1 << 30
"""Largest model that is copied; a protobuf holds twice that at most."""


def overflowing_sets(
    reference: Reference, rewritten: Path, numbers: Sequence[int]
) -> dict[int, str]:
    """Find the input sets on which the original gives NaN or Inf at a linear node that changed.

    Nodes in subgraphs are not examined, so there a difference counts.

    Args:
        reference: the original.
        rewritten: model file.
        numbers: of the input sets.

    Returns:
        For each such set a sentence with the place and the amount.
    """
    if not numbers:
        return {}
    try:
        before, after = (
            program(load_with_data(path, MAX_BYTES), None) for path in (reference.model, rewritten)
        )
        changed = [n for n in Correspondence(before, after).changed if operator_of(n) in OPERATORS]
        names = {name for node in changed for name in (*node.input, *node.output)}
        wanted = (names & before.scope.writers.keys()) - {*before.outputs}
        reference.report(f"looking for NaN and Inf at {len(changed)} linear nodes")
        for name in sorted(wanted):
            before.proto.graph.output.add().name = name
        session = open_exact(before.proto, reference.options, Level.DISABLED)
        runs = [session.run(reference.sets[number].feeds) for number in numbers]
    except UnverifiedError:
        return {}
    found = ((number, _first(changed, run)) for number, run in zip(numbers, runs, strict=True))
    return {number: sentence for number, sentence in found if sentence}


def _first(nodes: Sequence[onnx.NodeProto], values: Outputs) -> str:
    """Name the first node with a value that is not finite, "" if there is none."""
    for node in nodes:
        for name in (*node.input, *node.output):
            value = values.get(name)
            if value is None or value.dtype.kind != "f":
                continue
            count = int(value.size - np.count_nonzero(np.isfinite(value)))
            if count:
                return (
                    f"{describe_node(node)} of the original "
                    f"{'gives' if name in node.output else 'reads'} NaN or Inf there "
                    f"({count} of {value.size} values), which a fold may spread"
                )
    return ""
