"""One node on whole numbers, which are elements of every field themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

from widthfold_onnx.evidence.proof.field import draws_of, primes, residues
from widthfold_onnx.evidence.proof.operators import evaluate
from widthfold_onnx.evidence.proof.program import Program
from widthfold_onnx.evidence.proof.values import Call, Elements, KnownValue, Value

OPSET = 21
FLOAT, INT8, UINT8, INT32 = (
    onnx.TensorProto.DataType.Value(name) for name in ("FLOAT", "INT8", "UINT8", "INT32")
)
LARGE = 1 << 40


def elements(array: np.ndarray, kind: int = 0) -> Elements:
    return Elements(draws_of(np.asarray(array)), element_type=kind)


def evaluated(
    op: str,
    *inputs: np.ndarray | Value | None,
    opset: int = OPSET,
    kinds: Sequence[int] = (),
    outputs: int = 1,
    **attributes: Any,
) -> Value:
    """The first output of a node; arrays are passed as elements, so that nothing is a constant.

    Args:
        op: its operator.
        inputs: by position.
        opset: of the default domain.
        kinds: element types of the inputs, FLOAT where there are none, and of the output.
        outputs: how many it has.
        attributes: of the node.
    """
    names = [f"i{i}" if value is not None else "" for i, value in enumerate(inputs)]
    returned = [f"o{i}" for i in range(outputs)]
    node = helper.make_node(op, names, returned, **attributes)
    graph = helper.make_graph([node], "g", [], [onnx.ValueInfoProto(name="o0")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    kinds = kinds or [onnx.TensorProto.FLOAT] * (len(names) + outputs)
    program = Program.of(model, None)
    call = Call(
        node=node,
        attributes=program.attributes(node),
        inputs=[
            elements(value, kind) if isinstance(value, np.ndarray) else value
            for value, kind in zip(inputs, kinds, strict=False)
        ],
        opset=opset,
        version=program.version(node),
        shapes=[None] * outputs,
        output_types=list(kinds[len(names) :]),
    )
    results, _ = evaluate(call)
    return results[0]


def same(value: Value, expected: np.ndarray) -> None:
    """Show that a value is these whole numbers modulo every prime."""
    assert isinstance(value, KnownValue | Elements)
    assert value.shape == expected.shape
    whole = expected.astype(np.int64)
    assert (whole == expected).all()
    for draw, prime in zip(value.draws, primes(), strict=True):
        np.testing.assert_array_equal(residues(draw, prime), (whole % prime).astype(np.uint64))


def alike(first: Value, other: Value) -> np.ndarray:
    """Places at which two values are equal."""
    assert isinstance(first, KnownValue | Elements)
    assert isinstance(other, KnownValue | Elements)
    assert first.shape == other.shape
    equal = np.ones(first.shape, bool)
    for a, b in zip(first.draws, other.draws, strict=True):
        equal &= a == b
    return equal


def drawn(seed: int, *shape: int, bound: int = LARGE) -> np.ndarray:
    """Integers, most of them far above every prime."""
    return np.random.default_rng(seed).integers(-bound, bound, shape)


def reference(op: str, *inputs: np.ndarray, opset: int = OPSET, **attributes: Any) -> np.ndarray:
    names = [f"i{i}" for i in range(len(inputs))]
    node = helper.make_node(op, names, ["y"], **attributes)
    ports = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, inputs, strict=True)
    ]
    graph = helper.make_graph([node], "g", ports, [onnx.ValueInfoProto(name="y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    (y,) = ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True)))
    return np.asarray(y)
