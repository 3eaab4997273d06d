"""Define the rule of a companion: it says which new nodes are equal to a node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from widthfold_onnx.arrays import Array
from widthfold_onnx.model.graph.document import Attributes, Document, Node, Value
from widthfold_onnx.refusal import Refusal


@dataclass(frozen=True)
class Step:
    """A new node of one output.

    Attributes:
        op_type: an operator of ONNX.
        inputs: values of the model, the results of earlier steps by their index, or new constants.
        attributes: by name.
    """

    op_type: str
    inputs: tuple[Value | int | Array, ...]
    attributes: Attributes = field(default_factory=dict)


@dataclass(frozen=True)
class Rule:
    """The rule of a companion.

    Attributes:
        op_types: operators of ONNX.
        equal: returns the new nodes that are equal to one of these, the last of which compute its
            outputs; why there are none; or None for a node that it does not match.
        inlines: whether functions are inlined that hold such operators, to exchange them.
        branches: whether ONNX Runtime's kernels of these operators branch on the data.
        lifts: whether its gain is that of layers of one axis that are lifted.
    """

    op_types: tuple[str, ...]
    equal: Callable[[Document, Node], tuple[Step, ...] | Refusal | None]
    inlines: bool = True
    branches: bool = False
    lifts: bool = False
