"""Graphs, nodes, tensors and inputs of a model are all visited, once, with their paths."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from widthfold_onnx.model.linking import NodeName
from widthfold_onnx.model.proto import walk

FLOAT = TensorProto.FLOAT


def tensor(name: str) -> onnx.TensorProto:
    return numpy_helper.from_array(np.ones(3, np.float32), name)


def value(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, FLOAT, [3])


def graph(name: str, nodes: list[onnx.NodeProto], *tensors: onnx.TensorProto) -> onnx.GraphProto:
    return helper.make_graph(nodes, name, [], [value("r")], tensors)


def constant(name: str) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], name, value=tensor(f"{name}/value"))


def nested() -> onnx.ModelProto:
    """An If, in whose second branch there is a node with a list of graphs.

    `make_node` sorts the branches by name.
    """
    many = helper.make_node(
        "Many", ["x"], ["", "m"], "many", domain="d", bodies=[graph("p", [constant("i")])] * 2
    )
    branches = {
        "then_branch": graph("then", [constant("t")], tensor("stored")),
        "else_branch": graph("else", [many, constant("e")]),
    }
    choice = helper.make_node("If", ["c"], ["y"], "choice", **branches)
    main = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["a"], "first"), choice],
        "main",
        [value("x"), value("w")],
        [value("y")],
        [tensor("w"), tensor("v")],
    )
    sparse = helper.make_sparse_tensor(
        tensor("s"), numpy_helper.from_array(np.arange(3), "places"), [7]
    )
    main.sparse_initializer.append(sparse)
    function = helper.make_function(
        "l",
        "f",
        ["u"],
        ["z"],
        [constant("inside"), helper.make_node("Neg", ["u"], ["z"], "last")],
        [helper.make_opsetid("", 18)],
        attribute_protos=[helper.make_attribute("default", tensor("default"))],
    )
    return helper.make_model(
        main, opset_imports=[helper.make_opsetid("", 18)], ir_version=9, functions=[function]
    )


def test_a_node_comes_before_the_nodes_in_it() -> None:
    names = [node.name for node in walk.model_nodes(nested())]
    assert names == ["first", "choice", "many", "i", "i", "e", "t", "inside", "last"]


def test_a_graph_is_named_by_the_way_to_it() -> None:
    """The first output that has a name names the node, a place in a list has its index."""
    paths = {path: body.name for path, body in walk.placed_graphs(nested().graph)}
    assert paths == {
        "": "main",
        "y/else_branch": "else",
        "y/else_branch/m/bodies[0]": "p",
        "y/else_branch/m/bodies[1]": "p",
        "y/then_branch": "then",
    }
    assert [body.name for body in walk.all_graphs(nested().graph)] == list(paths.values())


def test_a_node_without_output_names_its_graphs_by_its_own_name() -> None:
    assert walk.body_path("a", helper.make_node("If", ["c"], [], "alone"), "x") == "a/alone/x"


def test_a_node_in_a_branch_of_an_if_is_found_by_any_name_of_the_output() -> None:
    for output in ("u", "/u", "/a/If_output_0"):
        node = helper.make_node("If", ["c"], [output])
        name = NodeName(walk.body_path(walk.body_path("", node, "else_branch"), node, "x"), "conv")
        assert name.lies_in_branch_of(output)
        assert not name.lies_in_branch_of("other")


def test_every_tensor_is_visited_once() -> None:
    names = [stored.name for stored in walk.all_tensors(nested())]
    assert sorted(names) == sorted(
        [
            *("w", "v", "s", "places", "stored", "default"),
            *("t/value", "i/value", "i/value", "e/value", "inside/value"),
        ]
    )


def test_both_spellings_of_the_default_domain_are_one() -> None:
    plain, spelled, foreign = (
        helper.make_node("Conv", ["x"], ["y"], domain=domain)
        for domain in ("", "ai.onnx", "com.microsoft")
    )
    assert walk.operator_of(plain) == walk.operator_of(spelled) == ("", "Conv")
    assert walk.operator_of(foreign) == ("com.microsoft", "Conv")
    assert walk.is_default(plain, "Gemm", "Conv")
    assert walk.is_default(spelled, "Conv")
    assert not walk.is_default(foreign, "Conv")
    assert not walk.is_default(plain, "Gemm")
    imports = [helper.make_opsetid("ai.onnx", 17), helper.make_opsetid("l", 3)]
    assert walk.opsets_of(imports) == {"": 17, "l": 3}


def test_sparse_initializers_are_named_by_their_values() -> None:
    assert walk.initializers(nested().graph).keys() == {"w", "v", "s"}


@pytest.mark.parametrize(
    ("ir_version", "inputs", "overridable"), [(3, ["x"], set()), (4, ["x", "w"], {"w"})]
)
def test_an_initializer_is_an_input_since_ir_version_4(
    ir_version: int, inputs: list[str], overridable: set[str]
) -> None:
    model = nested()
    model.ir_version = ir_version
    assert [port.name for port in walk.inputs(model)] == inputs
    assert walk.overridable(model) == overridable


@pytest.mark.parametrize("ir_version", [3, 8])
def test_an_input_with_a_default_need_not_be_fed(ir_version: int) -> None:
    """The default may be dense or sparse."""
    model = nested()
    model.ir_version = ir_version
    model.graph.input.append(helper.make_tensor_value_info("s", FLOAT, [7]))
    assert [port.name for port in walk.required_inputs(model)] == ["x"]


def test_frozen_weights_are_no_inputs() -> None:
    model = nested()
    before = model.SerializeToString(deterministic=True)
    result = walk.frozen(model)
    assert [port.name for port in result.graph.input] == ["x"]
    assert result.graph.initializer == model.graph.initializer
    assert walk.frozen(model, ["w", "v", "other"]) == result
    assert walk.frozen(model, ["v"]) is model
    assert walk.frozen(model, []) is model
    assert walk.frozen(result) is result
    assert model.SerializeToString(deterministic=True) == before


def test_below_ir_version_4_all_weights_are_frozen_together() -> None:
    """That version has no initializer that is no input; the next one lets callers replace them."""
    model = nested()
    model.ir_version = 3
    model.graph.input.append(helper.make_tensor_value_info("v", FLOAT, [7]))
    result = walk.frozen(model, ["w"])
    assert result.ir_version == 4
    assert [port.name for port in result.graph.input] == ["x"]
    assert walk.frozen(model, ["other"]) is model


def test_unread_weights_are_inputs_that_no_node_reads() -> None:
    model = nested()
    assert walk.unread_weights(model) == {"w"}
    model.graph.node[0].input[0] = "w"
    assert walk.unread_weights(model) == set()
    model.graph.input.append(helper.make_tensor_value_info("unread", FLOAT, [1]))
    assert "unread" not in walk.unread_weights(model)
    model.graph.initializer.append(helper.make_tensor("unread", FLOAT, [1], [1.0]))
    assert "unread" in walk.unread_weights(model)
    model.graph.output.append(helper.make_tensor_value_info("unread", FLOAT, [1]))
    assert "unread" not in walk.unread_weights(model)


def test_some_messages_of_a_field_are_kept_in_their_order() -> None:
    main = nested().graph
    walk.retain(main.initializer, lambda stored: stored.name != "w")
    assert [stored.name for stored in main.initializer] == ["v"]
    walk.retain(main.node, lambda node: True)
    assert [node.name for node in main.node] == ["first", "choice"]
