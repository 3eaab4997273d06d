"""The default operator domain, which a model may write in two ways."""

from __future__ import annotations

from typing import Protocol


class Operator(Protocol):
    """What names an operator: a node, linked or as message."""

    @property
    def op_type(self) -> str: ...  # noqa: D102 - as ONNX names it
    @property
    def domain(self) -> str: ...  # noqa: D102 - as ONNX names it


def is_default(node: Operator, *op_types: str) -> bool:
    """Whether a node is one of these operators of the default domain."""
    return node.op_type in op_types and node.domain in ("", "ai.onnx")
