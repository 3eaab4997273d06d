"""Reports on which provider each node of a timed model ran, and describes nodes that fell back.

A session on a GPU silently hands single nodes to the CPU. For a few nodes that only handle
shapes that is intended. With a Conv there, the time says nothing about the GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from widthfold_onnx.options import Provider
from widthfold_onnx.results import NodeTime, Side
from widthfold_onnx.runtime.sessions.descriptions import described
from widthfold_onnx.text import printable

HEAVY = ("Conv", "MatMul", "Gemm")
"""Parts of the names of operators that do the work of a model, fused and quantized ones too."""

MOST_NAMED = 5


def placement(nodes: Sequence[NodeTime]) -> dict[str, int]:
    """Count the nodes that ran on each provider."""
    return dict(Counter(node.provider for node in nodes))


def fallbacks(nodes: Sequence[NodeTime], provider: Provider) -> list[NodeTime]:
    """Return the nodes that did not run on the provider that was asked for."""
    return [node for node in nodes if node.provider != described(provider).name]


def alarms(sides: dict[str, Side], provider: str) -> list[str]:
    """Return a line for each model in which a node that does the work fell back.

    Args:
        sides: the timed models by name.
        provider: the provider that the caller asked for.
    """
    return [f"FALLBACK {line}" for line in _fallen(sides, provider, heavy=True)]


def remarks(sides: dict[str, Side], provider: str) -> list[str]:
    """Return the same for the other nodes that fell back."""
    return _fallen(sides, provider, heavy=False)


def _fallen(sides: dict[str, Side], provider: str, *, heavy: bool) -> list[str]:
    fallen = {
        name: [n for n in side.fallbacks if any(word in n.op for word in HEAVY) is heavy]
        for name, side in sides.items()
    }
    return [
        f"in the {name} model: {_named(nodes)}, not on {provider}"
        for name, nodes in fallen.items()
        if nodes
    ]


def _named(nodes: Sequence[NodeTime]) -> str:
    names = [f"{node.op} {printable(node.name, 80)}" for node in nodes[:MOST_NAMED]]
    if rest := len(nodes) - len(names):
        names.append(f"{rest} more")
    where = " and ".join(sorted({node.provider for node in nodes}))
    return f"{', '.join(names)} ran on {where}"
