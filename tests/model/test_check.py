import os

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from widthfold_onnx.errors import InvalidModelError
from widthfold_onnx.model.check import check_model
from widthfold_onnx.model.functions import MAX_INLINED_NODES
from widthfold_onnx.model.skeleton import skeleton

FLOAT, BOOL = TensorProto.FLOAT, TensorProto.BOOL
node = helper.make_node


def value(name, shape=(4,), dtype=FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def model(nodes, initializers=(), inputs=("X",), outputs=("Y",), functions=(), opset=17, ir=8):
    """A model over float vectors of four; opset "l" is there for functions, "x" is foreign."""
    opsets = [helper.make_opsetid(*item) for item in (("", opset), ("l", 1), ("x", 1))]
    graph = helper.make_graph(
        nodes, "g", [value(n) for n in inputs], [value(n) for n in outputs], initializers
    )
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir, functions=functions)


def tensor(dims, dtype=FLOAT, name="W", **data):
    made = TensorProto(name=name, data_type=dtype, dims=dims)
    for key, content in data.items():
        if key == "raw_data":
            made.raw_data = content
        else:
            getattr(made, key).extend(content)
    return made


def branch(name, nodes, output, initializers=(), inputs=()):
    return helper.make_graph(nodes, name, [value(n) for n in inputs], [value(output)], initializers)


def if_node(then, other=None, output="Y", condition="c"):
    other = other or branch("else", [node("Neg", ["X"], ["e"])], "e")
    return node("If", [condition], [output], "if", then_branch=then, else_branch=other)


CONDITION = numpy_helper.from_array(np.array(True), "c")
SIN = [node("Sin", ["X"], ["Y"], "sin")]


def accepts(made, folder=None):
    before = made.SerializeToString(deterministic=True)
    check_model(made, folder)
    assert made.SerializeToString(deterministic=True) == before


def refuses(made, message, folder=None):
    with pytest.raises(InvalidModelError, match=message) as caught:
        check_model(made, folder)
    assert str(caught.value).isprintable()


# ---------------------------------------------------------------- header


@pytest.mark.parametrize("ir", [-1, 0, onnx.IR_VERSION + 1, 2**40])
def test_refuses_an_unknown_ir_version(ir):
    refuses(model(SIN, ir=ir), "IR version")


@pytest.mark.parametrize("opset", [-1, 0, 999, 2**62])
def test_refuses_an_unknown_opset(opset):
    refuses(model(SIN, opset=opset), "opset")


def test_refuses_an_unknown_ml_opset_but_takes_foreign_domains():
    made = model(SIN)
    made.opset_import.append(helper.make_opsetid("com.example", 12345))
    accepts(made)
    made.opset_import.append(helper.make_opsetid("ai.onnx.ml", 99))
    refuses(made, "ai.onnx.ml")


def test_refuses_two_versions_of_one_operator_set():
    made = model(SIN)
    made.opset_import.append(helper.make_opsetid("ai.onnx", 16))
    refuses(made, "two versions")


def test_refuses_an_op_that_came_later():
    nodes = [node("Mish", ["X"], ["Y"])]
    accepts(model(nodes, opset=18))
    refuses(model(nodes, opset=17), "no operator 'Mish'")


def test_leaves_nodes_of_foreign_domains_alone():
    accepts(model([node("Frobnicate", ["X"], ["Y"], domain="x")]))
    refuses(model([node("Frobnicate", ["X"], ["Y"], domain="z")]), "not imported")


# ---------------------------------------------------------------- tensors


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (tensor([3], float_data=[1, 2]), "2 entries in float_data, its dims need 3"),
        (tensor([3], float_data=[1, 2, 3, 4]), "4 entries"),
        (tensor([3], int32_data=[1, 2, 3]), "belongs in float_data"),
        (tensor([3]), "0 entries"),
        (tensor([3], raw_data=bytes(12), float_data=[1, 2, 3]), "both"),
        (tensor([3], raw_data=bytes(16)), "16 data bytes"),
        (tensor([], raw_data=b""), "0 data bytes"),
        (tensor([3], TensorProto.INT4, raw_data=bytes(3)), "3 data bytes, its dims need 2"),
        (tensor([5], TensorProto.UINT2, raw_data=bytes(1)), "its dims need 2"),
        (tensor([3], TensorProto.INT4, int32_data=[1, 2, 3]), "its dims need 2"),
        (tensor([5], TensorProto.FLOAT6E2M3, raw_data=bytes(5)), "its dims need 4"),
        (tensor([2], TensorProto.COMPLEX64, float_data=[1, 2]), "its dims need 4"),
        (tensor([2], TensorProto.STRING, raw_data=b"ab"), "strings"),
        (tensor([2], TensorProto.STRING, string_data=[b"a"]), "1 entries"),
        (tensor([2, -1], raw_data=b""), "dim -1"),
        (tensor([2**62] * 3, raw_data=bytes(8)), "its dims need"),
        (tensor([1] * 65, raw_data=bytes(4)), "rank 65"),
        (tensor([1], 0, raw_data=bytes(4)), "element type 0"),
    ],
)
def test_refuses_data_that_are_not_what_the_dims_say(made, message):
    refuses(model(SIN, [made]), message)
    made.ClearField("name")
    constant = node("Constant", [], ["k"])
    constant.attribute.append(
        onnx.AttributeProto(name="value", type=onnx.AttributeProto.TENSOR, t=made)
    )
    refuses(model([constant, *SIN]), message)


@pytest.mark.parametrize(
    "made",
    [
        tensor([], float_data=[1]),
        tensor([0, 7]),
        tensor([0], raw_data=b""),
        tensor([3], TensorProto.INT4, raw_data=bytes(2)),
        tensor([3], TensorProto.UINT4, int32_data=[1, 2]),
        tensor([5], TensorProto.INT2, raw_data=bytes(2)),
        tensor([4], TensorProto.FLOAT4E2M1, raw_data=bytes(2)),
        tensor([3], TensorProto.FLOAT16, int32_data=[1, 2, 3]),
        tensor([2], TensorProto.COMPLEX128, double_data=[1, 2, 3, 4]),
        tensor([2], TensorProto.UINT32, uint64_data=[1, 2]),
        tensor([2], TensorProto.STRING, string_data=[b"a", b"\xff"]),
    ],
)
def test_takes_data_of_every_kind(made):
    accepts(model(SIN, [made]))


def test_refuses_a_negative_input_dim_but_takes_minus_one():
    made = model(SIN)
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    accepts(made)
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -2
    refuses(made, "dim -2")


# ---------------------------------------------------------------- names and order


def test_takes_nodes_in_any_order():
    accepts(model([node("Abs", ["t"], ["Y"]), node("Sin", ["X"], ["t"])]))


def test_takes_an_order_that_only_a_subgraph_needs():
    then = branch("then", [node("Abs", ["t"], ["a"])], "a")
    accepts(model([if_node(then), node("Sin", ["X"], ["t"])], [CONDITION]))


def test_takes_an_output_without_a_shape():
    made = model(SIN)
    made.graph.output[0].type.tensor_type.ClearField("shape")
    accepts(made)


def test_takes_initializers_that_are_inputs_or_outputs():
    weight = tensor([4], float_data=[1, 2, 3, 4])
    accepts(model(SIN, [weight], inputs=("X", "W"), outputs=("Y", "W")))
    large = tensor([4000], raw_data=bytes(16000))
    made = model(SIN, [large], outputs=("Y", "W"))
    made.graph.output[1].CopyFrom(value("W", [4000]))
    accepts(made)


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
        branch("then", [node("Abs", ["X"], ["a"])], "a", [tensor([1], float_data=[1], name="X")]),
        branch("then", [node("Abs", ["X"], ["c"])], "c"),
    ],
)
def test_refuses_names_that_hide_an_outer_value(then):
    refuses(model([if_node(then)], [CONDITION]), "hides|twice|cycle")


def test_refuses_values_written_twice():
    refuses(model([*SIN, node("Cos", ["X"], ["Y"], "cos")]), "node 'cos': 'Y' is written twice")
    refuses(model([node("Sin", ["X"], ["X"])], outputs=("X",)), "'X' is written twice")
    refuses(model(SIN, inputs=("X", "X")), "two graph inputs")
    twin = tensor([1], float_data=[1])
    refuses(model(SIN, [twin, twin]), "two initializers")
    sparse = onnx.SparseTensorProto(values=twin, dims=[5])
    sparse.indices.CopyFrom(tensor([1], TensorProto.INT64, name="", int64_data=[3]))
    made = model(SIN, [twin])
    made.graph.sparse_initializer.append(sparse)
    refuses(made, "two initializers")


def test_node_names_are_unique_in_a_graph_but_may_be_empty():
    accepts(model([node("Sin", ["X"], ["t"]), node("Sin", ["t"], ["Y"])]))
    pair = [node("Sin", ["X"], ["t"], "n"), node("Sin", ["t"], ["u"], "n")]
    refuses(model([if_node(branch("then", pair, "u"))], [CONDITION]), "two nodes are named 'n'")


def test_refuses_names_that_are_not_text():
    data = model([node("Sin", ["X"], ["t1"]), node("Sin", ["t1"], ["Y"])]).SerializeToString()
    refuses(onnx.ModelProto.FromString(data.replace(b"t1", b"t\xff")), r"\\xff")


@pytest.mark.parametrize("mark", ["graph-name", "some-note", "some-dim", "some-tool"])
def test_refuses_other_strings_that_are_not_text(mark):
    made = model(SIN)
    made.graph.name, made.graph.node[0].doc_string = "graph-name", "some-note"
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "some-dim"
    made.producer_name = "some-tool"
    accepts(made)
    data = made.SerializeToString().replace(mark.encode(), mark[:-1].encode() + b"\xff")
    refuses(onnx.ModelProto.FromString(data), "not UTF-8")


def test_takes_sparse_initializers():
    made = model([node("Add", ["X", "S"], ["Y"])])
    sparse = made.graph.sparse_initializer.add(dims=[4])
    sparse.values.CopyFrom(tensor([1], float_data=[1], name="S"))
    sparse.indices.CopyFrom(tensor([1], TensorProto.INT64, name="", int64_data=[3]))
    accepts(made)
    sparse.indices.dims[0] = 2
    refuses(made, "1 entries")


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        (onnx.AttributeProto(name="a", i=1), "refuses"),
        (onnx.AttributeProto(name="a", type=onnx.AttributeProto.INT, f=1), "refuses"),
        (onnx.AttributeProto(name="a", type=onnx.AttributeProto.INT, i=1, s=b"x"), "refuses"),
        (onnx.AttributeProto(name="a", type=2, ref_attr_name="b"), "function"),
    ],
)
def test_refuses_insane_attributes(attribute, message):
    made = node("Frobnicate", ["X"], ["Y"], domain="x")
    made.attribute.append(attribute)
    refuses(model([made]), message)


def test_refuses_an_attribute_given_twice():
    made = node("Frobnicate", ["X"], ["Y"], domain="x", a=1)
    made.attribute.append(made.attribute[0])
    refuses(model([made]), "two attributes named 'a'")


# ---------------------------------------------------------------- functions


def function(name, nodes, inputs=("a",), outputs=("b",)):
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("l", 1)]
    return helper.make_function("l", name, inputs, outputs, nodes, opsets)


CALL = [node("f", ["X"], ["Y"], domain="l")]


def test_takes_a_local_function():
    accepts(model(CALL, functions=[function("f", [node("Sin", ["a"], ["b"])])]))


def test_refuses_functions_that_call_themselves():
    one = function("f", [node("g", ["a"], ["b"], domain="l")])
    two = function("g", [node("f", ["a"], ["b"], domain="l")])
    refuses(model(CALL, functions=[one, two]), "calls itself")
    alone = function("f", [node("f", ["a"], ["b"], domain="l")])
    refuses(model(CALL, functions=[alone]), "'l::f' calls itself")
    inside = branch("then", [node("f", ["a"], ["t"], domain="l")], "t")
    other = branch("else", [node("Abs", ["a"], ["e"])], "e")
    body = [node("Cast", ["a"], ["k"], to=BOOL), if_node(inside, other, "b", "k")]
    refuses(model(CALL, functions=[function("f", body)]), "calls itself")


def test_bounds_what_functions_grow_to():
    def chain(depth):
        made = []
        for level in range(depth):
            op, domain = (f"f{level + 1}", "l") if level + 1 < depth else ("Sin", "")
            calls = [node(op, [a], [b], domain=domain) for a, b in ("ab", "bc")]
            made.append(function(f"f{level}", calls, outputs=("c",)))
        return model([node("f0", ["X"], ["Y"], domain="l")], functions=made)

    accepts(chain(12))
    refuses(chain(26), f"above {MAX_INLINED_NODES}")


def test_a_long_chain_of_functions_needs_no_stack():
    made = [function(f"f{i}", [node(f"f{i + 1}", ["a"], ["b"], domain="l")]) for i in range(3000)]
    made.append(function("f3000", [node("Sin", ["a"], ["b"])]))
    refuses(model(CALL[:0], functions=made), "'Y' is written by no node")


def test_refuses_a_broken_function_body():
    refuses(model(CALL, functions=[function("f", [node("Sin", ["X"], ["b"])])]), "reads 'X'")
    refuses(model(CALL, functions=[function("f", [])]), "'b' is written by no node")
    refuses(model(CALL, functions=[function("f", [node("No", ["a"], ["b"])])]), "operator 'No'")
    twice = [function("f", [node("Sin", ["a"], ["b"])])] * 2
    refuses(model(CALL, functions=twice), "defined twice")


# ---------------------------------------------------------------- external data


@pytest.fixture
def external(tmp_path):
    """Check a model whose weight is outside; keywords become entries, None removes one."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "w.bin").write_bytes(bytes(range(16)))

    def build(**entries):
        weight = TensorProto(name="W", data_type=FLOAT, dims=[4], data_location=1)
        for key, text in {"location": "w.bin", "offset": "0", "length": "16", **entries}.items():
            if text is not None:
                weight.external_data.add(key=key, value=text)
        return model([node("Add", ["X", "W"], ["Y"])], [weight])

    build.folder = tmp_path / "model"
    return build


def test_takes_external_data(external):
    accepts(external(), external.folder)
    accepts(external(offset=None, length=None, checksum="0"), external.folder)
    (external.folder / "sub").mkdir()
    (external.folder / "w.bin").rename(external.folder / "sub" / "w.bin")
    accepts(external(location="sub/w.bin"), external.folder)
    accepts(external(location="./sub/w.bin"), external.folder)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"offset": "-4"}, "'-4' is no number"),
        ({"length": "-16"}, "'-16' is no number"),
        ({"offset": "0x4"}, "no number"),
        ({"offset": "٣"}, "no number"),
        ({"offset": "9" * 5000}, "no number"),
        ({"offset": "4"}, "bytes 4 to 20 of a file of 16"),
        ({"offset": "4", "length": None}, "12 external bytes, its dims need 16"),
        ({"length": "12"}, "12 external bytes"),
        ({"offset": "9223372036854775807"}, "of a file of 16"),
        ({"location": None}, "no file name"),
        ({"location": ""}, "no file name"),
        ({"location": "w.bin\0"}, "no file name"),
        ({"location": "."}, "no regular file"),
        ({"location": "sub/../w.bin"}, "leaves"),
        ({"location": "..\\w.bin"}, "leaves"),
        ({"location": "C:\\w.bin"}, "absolute"),
        ({"location": "/dev/zero"}, "absolute"),
        ({"location": "w.bin/x"}, "passes through"),
        ({"location": "n" * 300}, "too long"),
    ],
)
def test_refuses_external_data_that_do_not_fit(external, entries, message):
    refuses(external(**entries), message, external.folder)


def test_refuses_links_on_the_way(external):
    outside = external.folder.parent / "outside"
    outside.mkdir()
    (outside / "w.bin").write_bytes(bytes(16))
    (external.folder / "sub").symlink_to(outside)
    refuses(external(location="sub/w.bin"), "passes through a link", external.folder)
    (external.folder / "soft.bin").symlink_to("w.bin")
    refuses(external(location="soft.bin"), "no regular file", external.folder)
    (external.folder / "hard.bin").hardlink_to(outside / "w.bin")
    refuses(external(location="hard.bin"), "2 hard links", external.folder)
    os.mkfifo(external.folder / "fifo.bin")
    refuses(external(location="fifo.bin"), "no regular file", external.folder)


def test_refuses_external_data_without_a_folder_twice_or_of_strings(external):
    refuses(external(), "no folder", None)
    made = external()
    made.graph.initializer[0].external_data.add(key="offset", value="0")
    refuses(made, "twice", external.folder)
    made = external()
    made.graph.initializer[0].raw_data = bytes(16)
    refuses(made, "both", external.folder)
    made = external()
    made.graph.initializer[0].data_type = TensorProto.STRING
    refuses(made, "strings", external.folder)


@pytest.mark.parametrize("where", ["subgraph", "attribute", "function", "training"])
def test_finds_external_data_everywhere(external, where):
    weight = external(length="12").graph.initializer[0]
    constant = node("Constant", [], ["k"], value=weight)
    if where == "subgraph":
        then = branch("then", [node("Add", ["X", "W"], ["a"])], "a", [weight])
        made = model([if_node(then)], [CONDITION])
    elif where == "attribute":
        made = model([constant, *SIN])
    elif where == "function":
        made = model(CALL, functions=[function("f", [constant, node("Sin", ["a"], ["b"])])])
    else:
        made = model(SIN)
        made.training_info.add().algorithm.initializer.append(weight)
    refuses(made, "12 external bytes", external.folder)


# ---------------------------------------------------------------- the light copy


def test_the_skeleton_drops_large_data_and_keeps_shapes():
    large = numpy_helper.from_array(np.zeros((1000, 4), np.float32), "W")
    small = numpy_helper.from_array(np.array([-1], np.int64), "s")
    inner = [node("MatMul", ["W2", "X"], ["a"])]
    hidden = numpy_helper.from_array(np.zeros((500, 4), np.float32), "W2")
    constant = node("Constant", [], ["K"], value=large)
    then = branch("then", inner, "a", [hidden])
    other = branch("else", [node("MatMul", ["K", "X"], ["e"])], "e")
    then.output[0].CopyFrom(value("a", [500]))
    other.output[0].CopyFrom(value("e", [1000]))
    nodes = [node("Reshape", ["u", "s"], ["Y"]), constant, node("MatMul", ["W", "X"], ["t"])]
    nodes.append(if_node(then, other, "v"))
    nodes.append(node("Concat", ["t", "v"], ["u"], axis=0))
    made = model(nodes, [large, small, CONDITION])
    made.graph.output[0].CopyFrom(value("Y", ["n"]))
    accepts(made)
    light = skeleton(made)
    assert light.ByteSize() < 2000 < made.ByteSize()
    onnx.checker.check_model(light)
    found = onnx.shape_inference.infer_shapes(light, strict_mode=True)
    shapes = {
        v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in found.graph.value_info
    }
    assert shapes["t"] == [1000]
    branches = {a.name: a.g for n in found.graph.node for a in n.attribute if a.HasField("g")}
    inside = {v.name: v.type.tensor_type.shape for v in branches["then_branch"].value_info}
    assert [d.dim_value for d in inside["W2"].dim] == [500, 4]
    assert [v.name for v in light.graph.input][:1] == ["X"]


def test_the_skeleton_does_not_touch_the_data():
    large = tensor([1 << 20], raw_data=bytes(4 << 20))
    made = model([node("Sin", ["W"], ["Y"])], [large], inputs=())
    made.graph.output[0].CopyFrom(value("Y", [1 << 20]))
    light = skeleton(made)
    assert light.ByteSize() < 500
    assert not light.graph.initializer


def test_large_constants_of_functions_do_not_reach_the_checker():
    constant = node("Constant", [], ["k"], value=tensor([4000], raw_data=bytes(16000)))
    made = model(CALL, functions=[function("f", [constant, node("Add", ["a", "k"], ["b"])])])
    accepts(made)
    assert skeleton(made).ByteSize() < 1000
