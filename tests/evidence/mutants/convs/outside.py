"""Faults around the folded node."""

from __future__ import annotations

import numpy as np
from onnx import helper

from tests.evidence.mutants.alter import element
from tests.evidence.mutants.folded import Fault, Folded


def negated_behind(folded: Folded) -> bool:
    folded.insert(helper.make_node("Neg", [], [], "more"), folded.graph.node[-1])
    return True


def last_reads_conv(folded: Folded) -> bool:
    folded.graph.node[-1].input[0] = folded.conv.output[0]
    return True


def other_operator(folded: Folded) -> bool:
    folded.graph.node[-1].op_type = "Abs"
    return True


def output_renamed(folded: Folded) -> bool:
    folded.graph.node[-1].output[0] = folded.graph.output[0].name = "z_out"
    return True


def metadata_lost(folded: Folded) -> bool:
    """Another tool dropped metadata, and one weight is wrong by a percent."""
    for node in folded.chain:
        del node.metadata_props[:]
    return folded.change(1, element(0, lambda v: v * v.dtype.type(1.01)))


def bias_nan(folded: Folded) -> bool:
    return folded.change(2, element(0, lambda v: np.nan))


FAULTS: dict[str, Fault] = {
    "outside.negated_behind": negated_behind,
    "outside.last_reads_conv": last_reads_conv,
    "outside.other_operator": other_operator,
    "outside.output_renamed": output_renamed,
    "outside.metadata_lost": metadata_lost,
    "outside.bias_nan": bias_nan,
}
