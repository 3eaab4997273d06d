"""Names and order: each value is written once and read where it can be seen."""

import onnx
import pytest
from onnx import TensorProto

from tests.model.checked import (
    CONDITION,
    SIN,
    accepts,
    branch,
    if_node,
    model,
    node,
    refuses,
    tensor,
    value,
)


def test_takes_nodes_in_any_order():
    accepts(model([node("Abs", ["t"], ["Y"]), node("Sin", ["X"], ["t"])]))


def test_takes_an_order_that_only_a_subgraph_needs():
    then = branch("then", [node("Abs", ["t"], ["a"])], "a")
    accepts(model([if_node(then), node("Sin", ["X"], ["t"])], [CONDITION]))


def test_takes_an_output_without_a_shape():
    proto = model(SIN)
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    accepts(proto)


def test_takes_initializers_that_are_inputs_or_outputs():
    weight = tensor([4], float_data=[1, 2, 3, 4])
    accepts(model(SIN, [weight], inputs=("X", "W"), outputs=("Y", "W")))
    large = tensor([4000], raw_data=bytes(16000))
    proto = model(SIN, [large], outputs=("Y", "W"))
    proto.graph.output[1].CopyFrom(value("W", [4000]))
    accepts(proto)


def test_refuses_cycles_inside_subgraphs_and_through_them():
    loop = [node("Sin", ["b"], ["a"], "one"), node("Cos", ["a"], ["b"], "two")]
    refuses(model([if_node(branch("then", loop, "a"))], [CONDITION]), "node '(one|two)'.*cycle")
    through = branch("then", [node("Abs", ["Y"], ["a"])], "a")
    refuses(model([if_node(through)], [CONDITION]), "node 'if'.*cycle")
    refuses(model([node("Sin", ["Y"], ["Y"], "self")]), "node 'self'.*cycle")


def test_refuses_values_that_nobody_writes():
    refuses(model([node("Add", ["X", "k"], ["Y"], "add")]), "node 'add' reads 'k'")
    then = branch("then", [node("Abs", ["k"], ["a"], "abs")], "a")
    refuses(model([if_node(then)], [CONDITION]), "node 'abs' reads 'k'")
    refuses(model([if_node(branch("then", SIN[:0], "gone"))], [CONDITION]), "'gone'")


def test_refuses_values_of_one_branch_in_the_other():
    then = branch("then", [node("Abs", ["X"], ["a"])], "a")
    other = branch("else", [node("Neg", ["a"], ["e"], "neg")], "e")
    refuses(model([if_node(then, other)], [CONDITION]), "node 'neg' reads 'a'")


def test_takes_the_same_name_in_two_branches():
    then = branch("then", [node("Abs", ["X"], ["a"])], "a")
    other = branch("else", [node("Neg", ["X"], ["a"])], "a")
    accepts(model([if_node(then, other)], [CONDITION]))


@pytest.mark.parametrize(
    "then",
    [
        branch("then", [node("Abs", ["X"], ["X"])], "X"),
        branch("then", [node("Abs", ["X"], ["c"])], "c"),
    ],
)
def test_refuses_names_that_hide_an_outer_value(then):
    refuses(model([if_node(then)], [CONDITION]), "hides|twice|cycle")


def test_takes_an_initializer_written_again_into_a_branch():
    outer, other = (tensor([1], float_data=[value], name="k") for value in (1, 2))
    then = branch("then", [node("Add", ["X", "k"], ["a"])], "a", [outer])
    reading = branch("else", [node("Mul", ["X", "k"], ["e"])], "e")
    accepts(model([if_node(then, reading)], [CONDITION, outer]))
    refuses(model([if_node(then, reading)], [CONDITION, other]), "hides the value 'k'")


def test_refuses_values_written_twice():
    refuses(model([*SIN, node("Cos", ["X"], ["Y"], "cos")]), "node 'cos': 'Y' is written twice")
    refuses(model([node("Sin", ["X"], ["X"])], outputs=("X",)), "'X' is written twice")
    refuses(model(SIN, inputs=("X", "X")), "two graph inputs")
    twin = tensor([1], float_data=[1])
    refuses(model(SIN, [twin, twin]), "two initializers")
    sparse = onnx.SparseTensorProto(values=twin, dims=[5])
    sparse.indices.CopyFrom(tensor([1], TensorProto.INT64, name="", int64_data=[3]))
    proto = model(SIN, [twin])
    proto.graph.sparse_initializer.append(sparse)
    refuses(proto, "two initializers")


def test_node_names_are_unique_in_a_graph_but_may_be_empty():
    accepts(model([node("Sin", ["X"], ["t"]), node("Sin", ["t"], ["Y"])]))
    pair = [node("Sin", ["X"], ["t"], "n"), node("Sin", ["t"], ["u"], "n")]
    refuses(model([if_node(branch("then", pair, "u"))], [CONDITION]), "two nodes are named 'n'")


def test_refuses_names_that_are_not_text():
    data = model([node("Sin", ["X"], ["t1"]), node("Sin", ["t1"], ["Y"])]).SerializeToString()
    refuses(onnx.ModelProto.FromString(data.replace(b"t1", b"t\xff")), r"\\xff")


@pytest.mark.parametrize("mark", ["graph-name", "some-note", "some-dim", "some-tool"])
def test_refuses_other_strings_that_are_not_text(mark):
    proto = model(SIN)
    proto.graph.name, proto.graph.node[0].doc_string = "graph-name", "some-note"
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "some-dim"
    proto.producer_name = "some-tool"
    accepts(proto)
    data = proto.SerializeToString().replace(mark.encode(), mark[:-1].encode() + b"\xff")
    refuses(onnx.ModelProto.FromString(data), "not UTF-8")
