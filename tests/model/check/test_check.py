"""Header, tensors and attributes that are accepted, and others that are refused."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

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
)
from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.runtime.session import open_session

FLOAT4E2M1, UINT2, INT2, FLOAT6E2M3 = 23, 25, 26, 27  # older releases of onnx do not name them


@pytest.mark.parametrize("ir", [-1, 0, onnx.IR_VERSION + 1, 2**40])
def test_refuses_an_unknown_ir_version(ir):
    refuses(model(SIN, ir=ir), "IR version")


@pytest.mark.parametrize("opset", [-1, 0, 999, 2**62])
def test_refuses_an_unknown_opset(opset):
    refuses(model(SIN, opset=opset), "opset")


def test_refuses_an_unknown_ml_opset_but_takes_foreign_domains():
    proto = model(SIN)
    proto.opset_import.append(helper.make_opsetid("com.example", 12345))
    accepts(proto)
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 99))
    refuses(proto, "ai.onnx.ml")


def test_refuses_two_versions_of_one_operator_set():
    proto = model(SIN)
    proto.opset_import.append(helper.make_opsetid("ai.onnx", 16))
    refuses(proto, "two versions")


def test_refuses_an_op_that_came_later():
    nodes = [node("Mish", ["X"], ["Y"])]
    accepts(model(nodes, opset=18))
    refuses(model(nodes, opset=17), "no operator 'Mish'")


def test_takes_operators_of_the_default_domain_that_the_runtime_alone_has():
    """Windows ML wrote them before operator set 10; the runtime has them below it still."""
    nodes = [node("ParametricSoftplus", ["X"], ["Y"], alpha=2.0, beta=1.0)]
    for opset in (7, 9):
        proto = model(nodes, opset=opset)
        accepts(proto)
        open_session(proto)
    proto = model(nodes, opset=10)
    refuses(proto, "no operator 'ParametricSoftplus' in opset 10")
    with pytest.raises(UnverifiedError, match="not a registered function/op"):
        open_session(proto)


def test_takes_operators_of_the_runtime_in_bodies_and_functions():
    nodes = [node("Affine", ["X"], ["Y"], alpha=2.0)]
    then, other = (branch(name, [node("Affine", ["X"], [name])], name) for name in ("t", "e"))
    accepts(model([if_node(then, other, "Y")], [CONDITION], opset=9))
    call = helper.make_node("F", ["X"], ["Y"], domain="l")
    for opset, taken in ((9, True), (10, False)):
        imports = [helper.make_opsetid("", opset)]
        proto = model([call], opset=9)
        proto.functions.append(helper.make_function("l", "F", ["X"], ["Y"], nodes, imports))
        proto.opset_import.append(helper.make_opsetid("l", 1))
        if taken:
            accepts(proto)
        else:
            refuses(proto, "no operator 'Affine' in opset 10")


def test_takes_what_the_checker_of_onnx_refuses_and_the_runtime_loads():
    nameless, untyped, unimported = (model(SIN) for _ in range(3))
    nameless.graph.ClearField("name")
    untyped.graph.output[0].ClearField("type")
    unimported.graph.node[0].CopyFrom(node("Gelu", ["X"], ["Y"], domain="com.microsoft"))
    for proto in (nameless, untyped, unimported):
        with pytest.raises(onnx.checker.ValidationError):
            onnx.checker.check_model(proto)
        accepts(proto)
        open_session(proto)


def test_a_function_may_call_an_operator_of_the_runtime_without_an_import():
    inner = helper.make_node("Gelu", ["a"], ["b"], domain="com.microsoft")
    proto = model([helper.make_node("F", ["X"], ["Y"], domain="l")])
    imports = [helper.make_opsetid("", 17)]
    proto.functions.append(helper.make_function("l", "F", ["a"], ["b"], [inner], imports))
    proto.opset_import.append(helper.make_opsetid("l", 1))
    accepts(proto)


def test_leaves_nodes_of_foreign_domains_alone():
    accepts(model([node("Frobnicate", ["X"], ["Y"], domain="x")]))
    refuses(model([node("Frobnicate", ["X"], ["Y"], domain="z")]), "not imported")


@pytest.mark.parametrize(
    ("proto", "message"),
    [
        (tensor([3], float_data=[1, 2]), "2 entries in float_data, its dims need 3"),
        (tensor([3], float_data=[1, 2, 3, 4]), "4 entries"),
        (tensor([3], int32_data=[1, 2, 3]), "belongs in float_data"),
        (tensor([3]), "0 entries"),
        (tensor([3], raw_data=bytes(12), float_data=[1, 2, 3]), "both"),
        (tensor([3], raw_data=bytes(16)), "16 data bytes"),
        (tensor([], raw_data=b""), "0 data bytes"),
        (tensor([3], TensorProto.INT4, raw_data=bytes(3)), "3 data bytes, its dims need 2"),
        (tensor([5], UINT2, raw_data=bytes(1)), "its dims need 2"),
        (tensor([3], TensorProto.INT4, int32_data=[1, 2, 3]), "its dims need 2"),
        (tensor([5], FLOAT6E2M3, raw_data=bytes(5)), "its dims need 4"),
        (tensor([2], TensorProto.COMPLEX64, float_data=[1, 2]), "its dims need 4"),
        (tensor([2], TensorProto.STRING, raw_data=b"ab"), "strings"),
        (tensor([2], TensorProto.STRING, string_data=[b"a"]), "1 entries"),
        (tensor([2, -1], raw_data=b""), "dim -1"),
        (tensor([2**62] * 3, raw_data=bytes(8)), "its dims need"),
        (tensor([1] * 65, raw_data=bytes(4)), "rank 65"),
        (tensor([1], 0, raw_data=bytes(4)), "element type 0"),
    ],
)
def test_refuses_data_that_are_not_what_the_dims_say(proto, message):
    refuses(model(SIN, [proto]), message)
    proto.ClearField("name")
    constant = node("Constant", [], ["k"])
    constant.attribute.append(
        onnx.AttributeProto(name="value", type=onnx.AttributeProto.TENSOR, t=proto)
    )
    refuses(model([constant, *SIN]), message)


@pytest.mark.parametrize(
    "proto",
    [
        tensor([], float_data=[1]),
        tensor([0, 7]),
        tensor([0], raw_data=b""),
        tensor([3], TensorProto.INT4, raw_data=bytes(2)),
        tensor([3], TensorProto.UINT4, int32_data=[1, 2]),
        tensor([5], INT2, raw_data=bytes(2)),
        tensor([4], FLOAT4E2M1, raw_data=bytes(2)),
        tensor([3], TensorProto.FLOAT16, int32_data=[1, 2, 3]),
        tensor([2], TensorProto.COMPLEX128, double_data=[1, 2, 3, 4]),
        tensor([2], TensorProto.UINT32, uint64_data=[1, 2]),
        tensor([2], TensorProto.STRING, string_data=[b"a", b"\xff"]),
    ],
)
def test_takes_data_of_every_kind(proto):
    accepts(model(SIN, [proto]))


def test_refuses_a_negative_input_dim_but_takes_minus_one():
    proto = model(SIN)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    accepts(proto)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -2
    refuses(proto, "dim -2")


def test_takes_sparse_initializers():
    proto = model([node("Add", ["X", "S"], ["Y"])])
    sparse = proto.graph.sparse_initializer.add(dims=[4])
    sparse.values.CopyFrom(tensor([1], float_data=[1], name="S"))
    sparse.indices.CopyFrom(tensor([1], TensorProto.INT64, name="", int64_data=[3]))
    accepts(proto)
    sparse.indices.dims[0] = 2
    refuses(proto, "1 entries")


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
    new_node = node("Frobnicate", ["X"], ["Y"], domain="x")
    new_node.attribute.append(attribute)
    refuses(model([new_node]), message)


def test_refuses_an_attribute_given_twice():
    new_node = node("Frobnicate", ["X"], ["Y"], domain="x", a=1)
    new_node.attribute.append(new_node.attribute[0])
    refuses(model([new_node]), "two attributes named 'a'")


@pytest.mark.parametrize(
    ("op_type", "domain", "name", "value"),
    [
        ("FusedConv", "com.microsoft", "strides", 2),
        ("FusedConv", "com.microsoft", "pads", "x"),
        ("FusedConv", "com.microsoft", "group", 2.0),
        ("FusedConv", "com.microsoft", "auto_pad", 1),
        ("FusedGemm", "com.microsoft", "transB", [1]),
        ("Crop", "", "border", 1),
        ("Crop", "", "scale", 2.0),
    ],
)
def test_refuses_an_attribute_of_another_type_of_an_operator_of_the_runtime(
    op_type, domain, name, value
):
    new_node = node(op_type, ["X"], ["Y"], domain=domain, **{name: value})
    refuses(
        model([new_node], opset=9),
        f"attribute '{name}' has another type than that of the operator",
    )


def test_refuses_a_word_that_is_no_text():
    new_node = node("Conv", ["X", "X"], ["Y"], "c", auto_pad=b"\xff")
    refuses(model([new_node]), "^node 'c': attribute 'auto_pad' is not UTF-8$")
    accepts(model([node("Frobnicate", ["X"], ["Y"], domain="x", cache=b"\xff")]))


def test_refuses_a_split_into_fewer_parts_than_it_has_outputs():
    """Inference and the runtime both write behind the end of a list of parts."""
    new_node = node("Split", ["X"], ["Y", "Z"], "cut", num_outputs=1)
    refuses(model([new_node], opset=18), "^node 'cut': num_outputs is 1, but it has 2 outputs$")


@pytest.mark.parametrize("parts", [2, 3])
def test_leaves_other_splits_to_the_runtime(parts):
    accepts(model([node("Split", ["X"], ["Y", "Z"], num_outputs=parts)], opset=18))


def test_refuses_a_negative_number_of_batch_dimensions():
    """Inference and the runtime both read before the start of a list of extents."""
    new_node = node("GatherND", ["X", "I"], ["Y"], batch_dims=-9)
    indices = numpy_helper.from_array(np.zeros((2, 1), np.int64), "I")
    refuses(model([new_node], [indices]), "^GatherND node of 'Y': batch_dims is negative$")


@pytest.mark.parametrize("equation", ["", "->", " . . . i , ic - > ... c", "Zi,ic", "...,->..."])
def test_leaves_other_equations_to_the_runtime(equation: str) -> None:
    weight = numpy_helper.from_array(np.zeros((3, 5), np.float32), "W")
    accepts(model([node("Einsum", ["X", "W"], ["Y"], equation=equation)], [weight]))


@pytest.mark.parametrize(
    "equation",
    [
        *("......i,ic->...c", "...i,ic->......c", "...i...,ic->c", "\xe9i,ic->c", "i,ic->c,"),
        *("i,ic->c->c", ".i,ic->c", "1i,ic->c", "(i),ic->c"),
    ],
)
def test_an_einsum_without_an_equation_is_refused(equation: str) -> None:
    """onnx 1.23 never ends to infer some of them."""
    new_node = node("Einsum", ["X", "W"], ["Y"], equation=equation)
    weight = numpy_helper.from_array(np.zeros((3, 5), np.float32), "W")
    refuses(model([new_node], [weight]), "^Einsum node of 'Y': '.*' is no equation$")
