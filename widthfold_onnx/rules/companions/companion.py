"""Define the rule of a companion: it says which new nodes are equal to a node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from widthfold_onnx.arrays import Array
from widthfold_onnx.model.document import Attributes, Document, Node, Value
from widthfold_onnx.refusal import Refusal

Operand = Value | int | Array | None
"""An input of a new node: a value of the model, the result of an earlier step by its index, a new
constant, or None where it is left out."""


@dataclass(frozen=True)
class NodeSpec:
    """A node of one output that is to be made.

    Attributes:
        op_type: an operator of ONNX.
        inputs: by position.
        attributes: by name.
        original: the node whose name and documentation it keeps, if it is a changed copy of one.
    """

    op_type: str
    inputs: tuple[Operand, ...]
    attributes: Attributes = field(default_factory=dict)
    original: Node | None = None


@dataclass(frozen=True)
class Exchange:
    """New nodes that take the place of a node.

    Attributes:
        node: the node; what nothing else reads is removed with it.
        nodes: the new nodes; the last nodes compute its outputs.
    """

    node: Node
    nodes: tuple[NodeSpec, ...]


@dataclass(frozen=True)
class CompanionRule:
    """The rule of a companion.

    Attributes:
        op_types: the operators of ONNX to whose nodes it is applied.
        exchange: returns the exchange of such a node, or of a node behind it; the reason if
            there is none; None for a node that the rule does not match.
        inlines: whether functions are inlined that hold such operators, to exchange them.
        branches: whether ONNX Runtime's kernels of these operators branch on the data.
        runtime_problem: returns why the nodes are not equal on the installed runtime, though ONNX
            defines them so; None if they are. It may run a small model: ask before a model is
            rewritten.
        lifts: True if it is also tried between lifted layers of one axis, as it may gain only
            there.
    """

    op_types: tuple[str, ...]
    exchange: Callable[[Document, Node], Exchange | Refusal | None]
    inlines: bool = False
    branches: bool = False
    runtime_problem: Callable[[], Refusal | None] = lambda: None
    lifts: bool = False
