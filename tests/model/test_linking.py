"""Graphs are linked to the messages that they were read from, and changed ones are written back."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from widthfold_onnx.errors import InvalidModelError
from widthfold_onnx.model.library import ir
from widthfold_onnx.model.linking import (
    NodeName,
    linked,
    message_of,
    named_by_training,
    names_of,
    reads,
    reduced,
    scopes_of,
    shown_name,
    sparse_of,
    write_back,
)

FLOAT = TensorProto.FLOAT


def tensor(name: str) -> onnx.TensorProto:
    return numpy_helper.from_array(np.arange(1, 4, dtype=np.float32), name)


def value(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, FLOAT, [3])


def branch(name: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
    return helper.make_graph(nodes, name, [], [value(nodes[-1].output[0])])


def chosen() -> onnx.ModelProto:
    """A model whose If reads values of the main graph in both branches; one weight is sparse."""
    choice = helper.make_node(
        "If",
        ["c"],
        ["y"],
        "choice",
        then_branch=branch("then", helper.make_node("Add", ["a", "w"], ["t"], "sum")),
        else_branch=branch("else", helper.make_node("Mul", ["a", "s"], ["e"])),
    )
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["a"], "first"), choice],
        "main",
        [value("x"), helper.make_tensor_value_info("c", TensorProto.BOOL, [])],
        [value("y")],
        [tensor("w")],
        value_info=[value("a")],
    )
    positions = numpy_helper.from_array(np.array([0, 1, 2]), "positions")
    graph.sparse_initializer.append(helper.make_sparse_tensor(tensor("s"), positions, [3]))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


# ---------------------------------------------------------------- links


def test_every_graph_and_node_remembers_its_message() -> None:
    model = chosen()
    scopes = {scope.path: scope for scope in scopes_of(linked(model), model)}
    assert scopes.keys() == {"", "y/then_branch", "y/else_branch"}
    for scope in scopes.values():
        assert scope.proto is not None
        for node, message in zip(scope.graph, scope.proto.node, strict=True):
            assert message_of(node) is message
    weight = scopes[""].graph.initializers["s"]
    assert sparse_of(weight) == model.graph.sparse_initializer[0]
    assert sparse_of(scopes[""].graph.initializers["w"]) is None


def test_an_if_reads_what_its_branches_read() -> None:
    _, choice = linked(chosen()).graph
    assert [read.name for read in reads(choice)] == ["c", "a", "s", "a", "w"]


def test_names_of_values_nodes_and_declarations() -> None:
    model = chosen()
    names = names_of(list(scopes_of(linked(model), model)))
    assert names >= {"x", "c", "a", "y", "w", "s", "t", "e", "first", "choice", "sum"}
    model.graph.value_info.append(value("declared alone"))
    assert "declared alone" in names_of(list(scopes_of(linked(model), model)))


def test_a_node_without_a_name_is_shown_by_its_output() -> None:
    model = chosen()
    first, choice = linked(model).graph
    (product,) = choice.attributes["else_branch"].as_graph()
    assert shown_name(first) == "first"
    assert shown_name(product) == "Mul -> e"
    assert shown_name(product, "other") == "Mul -> other"
    assert str(NodeName("y/else_branch", "Mul -> e")) == "y/else_branch/Mul -> e"
    assert str(NodeName("", "first")) == "first"


def test_names_of_training_are_taken() -> None:
    model = chosen()
    training = model.training_info.add()
    training.initialization_binding.add(key="w", value="start")
    training.algorithm.CopyFrom(branch("step", helper.make_node("Neg", ["g"], ["d"], "down")))
    assert set(named_by_training(model)) == {"w", "start", "g", "d", "down"}


# ---------------------------------------------------------------- what the library cannot read


def test_what_the_library_cannot_read_is_left_out_of_a_copy() -> None:
    model = chosen()
    node = model.graph.node[0]
    node.attribute.append(AttributeProto(name="raw", type=AttributeProto.STRING, s=b"\xff\xfe"))
    kind = AttributeProto(name="kind", type=AttributeProto.TYPE_PROTO)
    kind.tp.CopyFrom(value("any").type)
    node.attribute.append(kind)
    external = model.graph.initializer[0].external_data
    for key, text in (("location", "w.bin"), ("__class__", "str"), ("length", "12")):
        external.add(key=key, value=text)
    before = model.SerializeToString(deterministic=True)
    copy = reduced(model)
    assert model.SerializeToString(deterministic=True) == before
    assert not copy.graph.node[0].attribute
    assert [entry.key for entry in copy.graph.initializer[0].external_data] == [
        "location",
        "length",
    ]
    assert not copy.graph.sparse_initializer
    stand_in = copy.graph.initializer[1]
    assert (stand_in.name, list(stand_in.dims), stand_in.data_type) == ("s", [3], FLOAT)


def test_a_model_that_cannot_be_linked_is_invalid() -> None:
    model = chosen()
    model.graph.initializer.append(TensorProto(name="odd", data_type=999, dims=[3]))
    with pytest.raises(InvalidModelError, match=r"^cannot be represented: .*999"):
        linked(model)


# ---------------------------------------------------------------- writing


def test_an_unchanged_graph_is_written_as_it_was() -> None:
    model = chosen()
    before = model.SerializeToString(deterministic=True)
    write_back(linked_main(model), model.graph)
    assert model.SerializeToString(deterministic=True) == before


def linked_main(model: onnx.ModelProto) -> ir.Graph:
    """The linked main graph, with its messages."""
    scope = next(iter(scopes_of(linked(model), model)))
    assert isinstance(scope.graph, ir.Graph)
    return scope.graph


def test_a_changed_graph_is_written_back() -> None:
    """A node goes and with it its declaration; a constant goes, and a new one comes."""
    model = chosen()
    graph = linked_main(model)
    first, choice = graph
    (total,) = choice.attributes["then_branch"].as_graph()
    added = ir.Value(name="fresh", const_value=ir.tensor(np.full(3, 7, np.float32), name="fresh"))
    graph.register_initializer(added)
    for reader in (total, *choice.attributes["else_branch"].as_graph()):
        reader.replace_input_with(0, added)
    graph.remove(first)
    del graph.initializers["w"]
    write_back(graph, model.graph)
    assert [node.name for node in model.graph.node] == ["choice"]
    assert not model.graph.value_info
    assert {stored.name for stored in model.graph.initializer} == {"fresh"}
    (stored,) = model.graph.initializer
    np.testing.assert_array_equal(numpy_helper.to_array(stored), np.full(3, 7, np.float32))
    assert model.graph.sparse_initializer[0].values.name == "s"
