"""Shares of a model's time, by kind of node, from the runtime's own profile, for benchmarks."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from pathlib import Path

import msgspec

from widthfold_onnx.evidence.timing.profile import WEIGHTS, Roofline, profile
from widthfold_onnx.options import RuntimeOptions, Shapes
from widthfold_onnx.results import NodeTime
from widthfold_onnx.runtime.inputs.feeds import random_feeds
from widthfold_onnx.runtime.inputs.sizes import find_shapes
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.runtime.settings import Setting, open_at

LAYERS = {*WEIGHTS, "FusedConv"}
COPIES = {
    *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "ReorderInput", "ReorderOutput"),
    *("Concat", "Split", "Slice", "Pad", "Expand", "Gather", "Tile", "SpaceToDepth"),
    *("DepthToSpace", "Identity"),
}
"""Operators that compute nothing; ReorderInput and ReorderOutput copy into blocks and back."""


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of the time of all nodes of one model; the times are of a profiled run.

    Attributes:
        layers: share of the operators with weights (Conv, MatMul, ...).
        copies: share of the operators that compute nothing.
        others: share of each other operator, the largest first; at most three.
        reached: least time of the layers on this machine / their time, where the least is known.
    """

    layers: float
    copies: float
    others: dict[str, float]
    reached: float | None

    @classmethod
    def of(cls, nodes: list[NodeTime]) -> Shares:
        """Add up a profile."""
        us = defaultdict[str, float](float)
        for node in nodes:
            us[node.op] += node.us
        total = sum(us.values())
        limited = [n for n in nodes if n.op in LAYERS and n.reached is not None]
        limited_us = sum(node.us for node in limited)
        others = sorted(us.keys() - LAYERS - COPIES, key=lambda op: -us[op])
        return cls(
            layers=sum(us[op] for op in LAYERS) / total,
            copies=sum(us[op] for op in COPIES) / total,
            others={op: us[op] / total for op in others[:3]},
            reached=sum(n.us * n.reached for n in limited if n.reached) / limited_us
            if limited_us
            else None,
        )

    def __str__(self) -> str:
        reached = "" if self.reached is None else f" (at {self.reached:.0%} of the limit)"
        others = "".join(f", {op} {share:.0%}" for op, share in self.others.items() if share > 0.03)
        return f"layers {self.layers:.0%}{reached}, copies {self.copies:.0%}{others}"


def shares(model: Path, shapes: Shapes, options: RuntimeOptions) -> Shares:
    """Profile a model on random inputs at the runtime's level ALL.

    Raises:
        UnverifiedError: the model does not run.
    """
    setting = Setting(Level.ALL, options)
    session = open_at(model, setting)
    feeds = random_feeds(session.inputs, 0, find_shapes(session, shapes))
    return Shares.of(
        profile(partial(open_at, model, setting), feeds, Roofline(options).of(model, setting))
    )
