"""Facts of the values of a model, compared with the values that the runtime computes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx

from tests.running import Array, run
from widthfold_onnx.model.proto.walk import body_path
from widthfold_onnx.model.shapes.fact import Fact
from widthfold_onnx.model.shapes.table import ShapeTable


def check(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> None:
    """Compare the facts of all values with runs, with and without the extents of the inputs.

    Values inside branches are compared as well.
    """
    facts = ShapeTable(model, {}).facts
    exposed = onnx.ModelProto()
    exposed.CopyFrom(model)
    places = dict(exposures(exposed.graph, "", facts))
    del exposed.graph.output[:]
    exposed.graph.output.extend(onnx.ValueInfoProto(name=name) for name in places)
    true = dict(zip(places, run(exposed, feeds), strict=True))
    pins = {name: array.shape for name, array in feeds.items()}
    for table in (facts, ShapeTable(model, pins).facts):
        for name, array in true.items():
            path, own = places[name]
            is_run = not path or array.shape != (0,)
            if isinstance(array, np.ndarray) and is_run:
                agree(table[path][own], array, f"{name} in {path}")


def exposures(
    graph: onnx.GraphProto, path: str, facts: Mapping[str, Mapping[str, Fact]]
) -> Iterator[tuple[str, tuple[str, str]]]:
    """Let every If return all values of its branches; yield what a graph knows, with its place.

    Where the other branch runs, a value is an empty vector.
    """
    for node in graph.node:
        yield from ((name, (path, name)) for name in list(node.output) if name)
        branches = [(a.name, a.g) for a in node.attribute if node.op_type == "If"]
        inside = [
            list(exposures(branch, body_path(path, node, name), facts)) for name, branch in branches
        ]
        for own, (_, branch), (_, other) in zip(inside, branches, branches[::-1], strict=True):
            for value, (where, name) in own:
                if element_type := facts[where][name].element_type:
                    label = f"{where}:{name}"
                    empty = onnx.helper.make_tensor("", element_type, [0], [])
                    branch.node.append(onnx.helper.make_node("Identity", [value], [f"is {label}"]))
                    none = onnx.helper.make_node("Constant", [], [f"no {label}"], value=empty)
                    other.node.append(none)
                    for body, word in ((branch, "is"), (other, "no")):
                        declaration = onnx.helper.make_tensor_value_info(
                            f"{word} {label}", element_type, None
                        )
                        body.output.append(declaration)
                    node.output.append(label)
                    yield label, (where, name)


def agree(fact: Fact, array: Array, where: str) -> None:
    if fact.element_type:
        assert onnx.helper.np_dtype_to_tensor_dtype(array.dtype) == fact.element_type, where
    if fact.dims is not None:
        assert len(fact.dims) == array.ndim, f"{where}: {fact.dims} {array.shape}"
        pairs = zip(fact.dims, array.shape, strict=True)
        assert all(a in (None, b) for a, b in pairs), f"{where}: {fact.dims} {array.shape}"
    if fact.numbers is not None:
        pairs = zip(fact.numbers.ravel().tolist(), array.ravel().tolist(), strict=True)
        is_same = all(a is None or a == b or (a != a and b != b) for a, b in pairs)
        assert is_same, f"{where}: {fact.numbers} {array}"
