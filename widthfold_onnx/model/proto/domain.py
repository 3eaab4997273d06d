"""Recognizes operators of the default domain, which a model may spell in two ways."""

from __future__ import annotations

from typing import Protocol


class HasOperator(Protocol):
    """The domain and type that name the operator of a node, linked or as a message."""

    @property
    def op_type(self) -> str: ...  # noqa: D102 - as ONNX names it
    @property
    def domain(self) -> str: ...  # noqa: D102 - as ONNX names it


def is_default(node: HasOperator, *op_types: str) -> bool:
    """Check whether a node is one of these operators of the default domain."""
    return node.op_type in op_types and node.domain in ("", "ai.onnx")


def operator_of(node: HasOperator) -> tuple[str, str]:
    """Return domain and type of a node's operator; the default domain is ""."""
    return domain_name(node.domain), node.op_type


def domain_name(domain: str) -> str:
    """Return the canonical spelling of a domain: the default domain has two spellings."""
    return "" if domain == "ai.onnx" else domain
