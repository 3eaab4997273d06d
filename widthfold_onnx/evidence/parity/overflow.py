"""Finds inputs on which the original itself leaves the range of its numbers.

A structural zero times Inf is NaN, so a fold spreads a non-finite value to its neighbours, by
design and within one sample. Synthetic inputs may be larger than the model was made for;
where they make the original overflow at a linear node that changed, a difference shows nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.parity.comparison import Outputs
from widthfold_onnx.evidence.parity.runs import run_with
from widthfold_onnx.evidence.proof.correspondence import Correspondence
from widthfold_onnx.evidence.proof.program import program
from widthfold_onnx.model.proto.domain import operator_of
from widthfold_onnx.model.proto.scope import describe_node
from widthfold_onnx.model.read.loader import load_with_data
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.runtime.inputs.recorded import InputSet

MAX_BYTES = 1 << 30
"""Largest model that is copied; a protobuf holds twice that at most."""


def overflowing_sets(
    original: Path,
    rewritten: Path,
    sets: Mapping[int, InputSet],
    options: VerifyOptions,
    report: Callable[[str], None],
) -> dict[int, str]:
    """Find the input sets on which the original gives NaN or Inf at a linear node that changed.

    Nodes in subgraphs are not examined, so there a difference counts.

    Args:
        original: model file.
        rewritten: model file.
        sets: input sets by number.
        options: where the original runs, without the runtime's optimizations.
        report: gets a line of text before the runs.

    Returns:
        For each such set a sentence with the place and the amount.
    """
    if not sets:
        return {}
    try:
        before, after = (
            program(load_with_data(path, MAX_BYTES), None) for path in (original, rewritten)
        )
        changed = [n for n in Correspondence(before, after).changed if operator_of(n) in OPERATORS]
        names = {name for node in changed for name in (*node.input, *node.output)}
        wanted = names & {name for node in before.scope.nodes for name in node.output}
        report(f"looking for NaN and Inf at {len(changed)} linear nodes")
        runs = run_with(before.proto, wanted, sets.values(), options)
    except UnverifiedError:
        return {}
    found = ((number, _first(changed, run)) for number, run in zip(sets, runs, strict=True))
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
