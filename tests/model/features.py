"""One probe model per feature of the format; each has a Conv that folds by 2."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from google.protobuf.message import Message
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from tests.model.fidelity import graphs

RNG = np.random.default_rng(0)
WEIGHT = RNG.standard_normal((3, 2, 3, 3)).astype(np.float32)


BASE = """
<ir_version: 10, opset_import: ["" : 21]>
main (float[1, 2, 8, 8] x) => (float[1, 3, 8, 8] y) {
  c = Conv <pads = [1, 1, 1, 1]> (x, w, b)
  y = Relu (c)
}
"""


def base() -> onnx.ModelProto:
    """A model with one Conv that folds by 2."""
    model = onnx.parser.parse_model(BASE)
    model.graph.node[0].name = "conv"
    model.graph.initializer.append(numpy_helper.from_array(WEIGHT, "w"))
    model.graph.initializer.append(numpy_helper.from_array(WEIGHT[:, 0, 0, 0], "b"))
    return model


def extended(text: str, *, inputs: str = "", domains: str = "") -> onnx.ModelProto:
    """The base with more nodes that make the output z."""
    source = BASE.replace("8] x)", f"8] x{inputs})").replace('"" : 21', f'"" : 21{domains}')
    source = source.replace("y = Relu (c)", f"y = Relu (c)\n{text}")
    model = onnx.parser.parse_model(source)
    model.graph.node[0].name = "conv"
    model.graph.initializer.extend(base().graph.initializer)
    return model


def untyped(model: onnx.ModelProto, *names: str) -> onnx.ModelProto:
    """Float outputs of unknown rank."""
    for name in names:
        value = model.graph.output.add(name=name)
        value.type.tensor_type.elem_type = TensorProto.FLOAT
    return model


def noted(message: Message) -> None:
    message.metadata_props.add(key="k", value="v\u00e9")
    message.metadata_props.add(key="widthfold.nonsense", value="")


def model_metadata() -> onnx.ModelProto:
    model = base()
    noted(model)
    model.producer_name, model.producer_version = "p", "1"
    model.domain, model.model_version, model.doc_string = "d", 7, "model"
    return model


def graph_metadata() -> onnx.ModelProto:
    model = base()
    noted(model.graph)
    model.graph.doc_string = "graph"
    return model


def node_metadata() -> onnx.ModelProto:
    model = base()
    for node in model.graph.node:
        noted(node)
        node.doc_string = f"node {node.op_type}"
        for attribute in node.attribute:
            attribute.doc_string = "attribute"
    return model


def value_metadata() -> onnx.ModelProto:
    model = base()
    model.graph.value_info.append(helper.make_tensor_value_info("c", 1, [1, 3, 8, "w"]))
    model.graph.value_info.append(helper.make_tensor_value_info("absent", 1, [1]))
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        noted(value)
        value.doc_string = f"value {value.name}"
    return model


def tensor_metadata() -> onnx.ModelProto:
    model = untyped(extended("z = Add (y, k)"), "z")
    model.graph.initializer.append(numpy_helper.from_array(np.float32([2]), "k"))
    noted(model.graph.initializer[-1])
    model.graph.initializer[-1].doc_string = "tensor"
    return model


def described_weight() -> onnx.ModelProto:
    """The description of a weight goes with it."""
    model = base()
    model.graph.value_info.append(helper.make_tensor_value_info("w", 1, WEIGHT.shape))
    model.graph.value_info.append(helper.make_tensor_value_info("c", 1, [1, 3, 8, 8]))
    return model


def described_constant_weight() -> onnx.ModelProto:
    model = base()
    tensor = model.graph.initializer.pop(0)
    model.graph.node.insert(0, helper.make_node("Constant", [], ["w"], value=tensor))
    model.graph.value_info.append(helper.make_tensor_value_info("w", 1, WEIGHT.shape))
    return model


def symbols() -> onnx.ModelProto:
    model = base()
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.denotation = "IMAGE"
        dim = value.type.tensor_type.shape.dim
        dim[0].dim_param, dim[0].denotation, dim[2].denotation = "N", "DATA_BATCH", "HEIGHT"
    return model


def unknown_rank_output() -> onnx.ModelProto:
    model = base()
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


def local_functions() -> onnx.ModelProto:
    model = untyped(
        extended("z = loc.f (y)\n v = loc.f:two <alpha = 0.5> (y)", domains=', "loc" : 1'), "z", "v"
    )
    model.graph.node[-1].overload = "two"
    model.graph.node[-1].op_type = "f"
    opsets = [helper.make_opsetid("", 21)]
    nodes = [helper.make_node("Relu", ["p"], ["q"], doc_string="inside")]
    first = helper.make_function("loc", "f", ["p"], ["q"], nodes, opsets, doc_string="one")
    leaky = helper.make_node("LeakyRelu", ["p"], ["q"])
    leaky.attribute.add(name="alpha", ref_attr_name="alpha", type=AttributeProto.FLOAT)
    second = helper.make_function("loc", "f", ["p"], ["q"], [leaky], opsets, ["alpha"])
    second.overload = "two"
    second.attribute_proto.append(helper.make_attribute("beta", 1.0))
    for function in (first, second):
        noted(function)
        noted(function.node[0])
        function.value_info.append(helper.make_tensor_value_info("q", 1, ["N", 3]))
    model.functions.extend([first, second])
    return model


def quantization() -> onnx.ModelProto:
    model = base()
    for name in ("x", "c", "y"):
        annotation = model.graph.quantization_annotation.add(tensor_name=name)
        annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="b")
    return model


def custom_domain() -> onnx.ModelProto:
    model = untyped(
        extended("z = com.acme.Frob <level = 3> (y, x)", domains=', "com.acme" : 7, "unused" : 2'),
        "z",
    )
    noted(model.graph.node[-1])
    return model


def sparse_initializer() -> onnx.ModelProto:
    model = untyped(extended("z = Mul (y, s)"), "z")
    sparse = model.graph.sparse_initializer.add(dims=[8, 8])
    sparse.values.CopyFrom(numpy_helper.from_array(np.float32([1, 2]), "s"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.int64([3, 9]), "s_indices"))
    return model


def unused_initializer() -> onnx.ModelProto:
    model = base()
    model.graph.initializer.insert(0, numpy_helper.from_array(np.arange(3), "nobody"))
    return model


def sequences() -> onnx.ModelProto:
    model = extended("s = SequenceConstruct (y, c)\n o = Optional (s)\n p = Optional (y)")
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, ["N", 3]))
    optional = helper.make_optional_type_proto(kind)
    model.graph.output.append(helper.make_value_info("s", kind, doc_string="sequence"))
    model.graph.output.append(helper.make_value_info("o", optional))
    plain = helper.make_optional_type_proto(helper.make_tensor_type_proto(1, [1, 3, 8, 8]))
    model.graph.output.append(helper.make_value_info("p", plain))
    return model


def strings() -> onnx.ModelProto:
    model = extended('q = Constant <value_string = "\u00e9"> ()\n r = Identity (t)')
    model.graph.initializer.append(
        helper.make_tensor("t", TensorProto.STRING, [2], [b"a", b"\xff"])
    )
    for name in "qr":
        model.graph.output.append(
            helper.make_tensor_value_info(name, TensorProto.STRING, [] if name == "q" else [2])
        )
    return model


def empty_inputs_and_outputs() -> onnx.ModelProto:
    model = extended("")
    nodes = [
        helper.make_node("Clip", ["y", "", "top"], ["z"]),
        helper.make_node("Resize", ["y", "", "scales"], ["v", ""]),
        helper.make_node("Dropout", ["y", "", ""], ["d", ""]),
        helper.make_node("LSTM", ["seq", "gates", "back"], ["", "i", ""], hidden_size=1),
    ]
    nodes[1].output.pop()
    model.graph.node.extend(nodes)
    for name, array in (("top", np.float32(1)), ("scales", np.float32([1, 1, 2, 2]))):
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    for name, shape in (("seq", (1, 1, 2)), ("gates", (1, 4, 2)), ("back", (1, 4, 1))):
        model.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
    return untyped(model, "z", "v", "d", "i")


def inner_graph(name: str, text: str) -> onnx.GraphProto:
    return onnx.parser.parse_graph(f"{name} {text}")


def all_attributes() -> onnx.ModelProto:
    model = untyped(extended("z = com.acme.All (y)", domains=', "com.acme" : 1'), "z")
    tensor = numpy_helper.from_array(np.float32([1, 2]), "in_attribute")
    sparse = onnx.SparseTensorProto(dims=[4])
    sparse.values.CopyFrom(tensor)
    sparse.indices.CopyFrom(numpy_helper.from_array(np.int64([0, 3]), ""))
    body = inner_graph("body", "() => (float[1] q) { q = Constant <value_floats = [1.0]> () }")
    kind = helper.make_tensor_type_proto(1, ["N"])
    other = onnx.GraphProto()
    other.CopyFrom(body)
    other.node[0].output[0] = other.output[0].name = "r"
    values = {
        "f": 1.5,
        "i": -3,
        "s": b"\xff\x00",
        "t": tensor,
        "g": body,
        "tp": kind,
        "fs": [1.0, float("nan")],
        "is": [1, 2],
        "ss": [b"a", b"\xfe"],
        "ts": [tensor, tensor],
        "gs": [other],
        "tps": [kind],
    }
    node = model.graph.node[-1]
    node.attribute.extend([helper.make_attribute(name, value) for name, value in values.items()])
    node.attribute.append(helper.make_attribute("none", [], attr_type=AttributeProto.INTS))
    for attribute in node.attribute:
        attribute.doc_string = f"about {attribute.name}"
    return model


CAPTURING = """
z = If (flag) <
  then_branch = then () => (float[1, 3, 8, 8] t) { t = Conv <pads = [1, 1, 1, 1]> (x, w, b) },
  else_branch = else () => (float[1, 3, 8, 8] e) {
    e = If (flag) <
      then_branch = deep () => (float[1, 3, 8, 8] d) { d = Add (y, y) },
      else_branch = deeper () => (float[1, 3, 8, 8] u) { u = Conv <pads = [1, 1, 1, 1]> (x, w) }
    >
  }
>
"""


def branches() -> onnx.ModelProto:
    model = untyped(extended(CAPTURING, inputs=", bool flag"), "z")
    noted(model.graph.node[-1])
    for graph in graphs(model.graph):
        noted(graph)
        graph.doc_string = f"graph {graph.name}"
        for node in graph.node:
            noted(node)
    return model


LOOPING = """
n = Constant <value = int64 {3}> ()
go = Constant <value = bool {1}> ()
z = Loop (n, go, y) <
  body = turn (int64 i, bool on, float[1, 3, 8, 8] s) => (bool more, float[1, 3, 8, 8] r) {
    more = Identity (on)
    f = Conv <pads = [1, 1, 1, 1]> (x, w, b)
    r = Add (s, f)
  }
>
v = Scan <num_scan_inputs = 1, body = step (float[3, 8, 8] row) => (float[3, 8, 8] out) {
    out = Mul (row, k)
}> (y)
"""


def loops() -> onnx.ModelProto:
    model = untyped(extended(LOOPING), "z", "v")
    model.graph.initializer.append(numpy_helper.from_array(np.float32([2]), "k"))
    return model


def overridable() -> onnx.ModelProto:
    model = untyped(extended("z = Mul (y, k)", inputs=", float[1] k"), "z")
    model.graph.initializer.append(numpy_helper.from_array(np.float32([2]), "k"))
    return model


def old_inputs() -> onnx.ModelProto:
    """IR version 3: all initializers are inputs."""
    model = base()
    model.ir_version = 3
    model.opset_import[0].version = 9
    for tensor in model.graph.initializer:
        value = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        model.graph.input.append(value)
    return model


def devices() -> onnx.ModelProto:
    model = base()
    model.ir_version = 11
    model.configuration.add(name="two", num_devices=2, device=["a", "b"])
    configuration = model.graph.node[1].device_configurations.add(configuration_id="two")
    spec = configuration.sharding_spec.add(tensor_name="c", device=[0, 1])
    spec.sharded_dim.add(axis=1)
    return model


def nan_payloads() -> onnx.ModelProto:
    model = untyped(extended("z = Add (y, k)"), "z")
    bits = np.array([0x7FC01234, 0xFFC00001, 0x7F800001, 0x80000000], np.uint32)
    tensor = helper.make_tensor("k", TensorProto.FLOAT, [4, 1], bits.tobytes(), raw=True)
    model.graph.initializer.append(tensor)
    return model


def sparse_constant() -> onnx.ModelProto:
    model = untyped(extended("z = Mul (y, s)"), "z")
    sparse = onnx.SparseTensorProto(dims=[8, 8])
    sparse.values.CopyFrom(numpy_helper.from_array(np.float32([1, 2]), ""))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.int64([3, 9]), ""))
    model.graph.node.insert(0, helper.make_node("Constant", [], ["s"], sparse_value=sparse))
    return model


def map_input() -> onnx.ModelProto:
    model = base()
    kind = onnx.TypeProto()
    kind.map_type.key_type = TensorProto.STRING
    kind.map_type.value_type.tensor_type.elem_type = TensorProto.FLOAT
    model.graph.input.append(helper.make_value_info("m", kind))
    return model


UNKNOWN = b"\xfa\x3f\x03new"  # field 1023, a string


def with_unknown(message: Message) -> None:
    message.MergeFromString(UNKNOWN)
    assert UNKNOWN in message.SerializeToString()


def unknown_fields() -> onnx.ModelProto:
    model = untyped(extended("z = Add (y, k)"), "z")
    model.graph.initializer.append(numpy_helper.from_array(np.float32([2]), "k"))
    graph = model.graph
    for message in (
        *(graph.node[-1], graph.node[-1], graph.initializer[-1], graph.input[0], graph.output[0]),
        *(graph.input[0].type, graph.input[0].type.tensor_type.shape.dim[0]),
        *(graph, model.opset_import[0], model),
    ):
        with_unknown(message)
    return model


FEATURES: list[Callable[[], onnx.ModelProto]] = [
    base,
    model_metadata,
    graph_metadata,
    node_metadata,
    value_metadata,
    tensor_metadata,
    described_weight,
    described_constant_weight,
    symbols,
    unknown_rank_output,
    local_functions,
    quantization,
    custom_domain,
    sparse_initializer,
    unused_initializer,
    sequences,
    strings,
    empty_inputs_and_outputs,
    all_attributes,
    branches,
    loops,
    overridable,
    old_inputs,
    devices,
    nan_payloads,
    sparse_constant,
    map_input,
    unknown_fields,
]
