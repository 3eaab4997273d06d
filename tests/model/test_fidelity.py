"""What is not folded comes out as it went in: one probe model per feature of the format."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from google.protobuf.message import Message
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from widthfold_onnx import FoldOptions, fold_model, optimize
from widthfold_onnx.model.check import check_model
from widthfold_onnx.model.tensors import BITS, DTYPES
from widthfold_onnx.plan.nonfinite import NONFINITE_KEY
from widthfold_onnx.rewrite.record import ORIGIN_KEY
from widthfold_onnx.rules import LINEAR
from widthfold_onnx.rules.carry import CARRY

OPTIONS = FoldOptions(factor=2)
WHEEL = sorted(Path(onnx.__file__).parent.rglob("*.onnx"))
RNG = np.random.default_rng(0)
WEIGHT = RNG.standard_normal((3, 2, 3, 3)).astype(np.float32)


# --- the comparer -------------------------------------------------------------------------------


def wire(message: Message, *without: str) -> bytes:
    """All fields of a message, unknown ones too, but for some."""
    copy = type(message)()
    copy.CopyFrom(message)
    for field in without:
        copy.ClearField(field)
    return copy.SerializeToString(deterministic=True)


def bodies(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [g for a in node.attribute for g in ([a.g] if a.HasField("g") else list(a.graphs))]


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for body in bodies(node):
            yield from graphs(body)


def origin(node: onnx.NodeProto) -> str | None:
    return next((p.value for p in node.metadata_props if p.key == ORIGIN_KEY), None)


def read_names(model: onnx.ModelProto) -> set[str]:
    nodes = [node for graph in graphs(model.graph) for node in graph.node]
    return {name for node in nodes for name in node.input}


COMPUTES = ("Constant", "Identity", "Cast", "Transpose", "Reshape", "Squeeze", "Unsqueeze")
"""What may have computed the weight of a folded node, and go with it."""


def assert_only_folded(before: onnx.ModelProto, after: onnx.ModelProto) -> list[str]:
    """All that may differ are Convs, what they read, and what was put in; return new names."""
    spread = [entry for entry in after.metadata_props if entry.key == NONFINITE_KEY]
    assert len(spread) <= 1  # a fold without structural zeros says nothing
    assert all(float(entry.value.removeprefix("spread:")) > 1 for entry in spread)
    rest = onnx.ModelProto()
    rest.CopyFrom(after)
    for entry in spread:
        rest.metadata_props.remove(entry)
    assert wire(before, "graph") == wire(rest, "graph")
    added: list[str] = []
    _assert_graph(before.graph, after.graph, read_names(after), before.ir_version, added)
    taken = [name for graph in graphs(before.graph) for name in _names(graph)]
    assert len(set(added)) == len(added)
    assert not set(added) & set(taken)
    return added


def _names(graph: onnx.GraphProto) -> Iterator[str]:
    yield from (v.name for v in (*graph.input, *graph.initializer))
    yield from (t.values.name for t in graph.sparse_initializer)
    for node in graph.node:
        yield from (node.name, *node.output)


def _assert_graph(
    before: onnx.GraphProto, after: onnx.GraphProto, read: set[str], ir: int, added: list[str]
) -> None:
    lists = ("node", "initializer", "value_info", "input")
    assert wire(before, *lists) == wire(after, *lists)
    inputs = {value.name for value in before.input}
    extra = [value.name for value in after.input if value.name not in inputs]
    assert not extra or ir < 4
    _assert_list(before.input, after.input, lambda name: name in inputs and ir < 4, extra)
    constants = {tensor.name for tensor in before.initializer}
    new = [tensor.name for tensor in after.initializer if tensor.name not in constants]
    assert not set(extra) - set(new)
    added += new
    _assert_list(before.initializer, after.initializer, lambda name: name not in read, new)
    gone = _assert_nodes(before, after, read, ir, added)
    gone |= constants - {tensor.name for tensor in after.initializer}
    _assert_list(before.value_info, after.value_info, lambda name: name in gone, [])
    assert not gone & {value.name for value in after.value_info}


def _assert_list(
    before: Sequence[Message],
    after: Sequence[Message],
    may_go: Callable[[str], bool],
    new: Sequence[str],
) -> None:
    """The same messages in the same order; those that may go are left out, new ones come last."""
    kept = [item for item in after if item.name not in new]
    assert [item.name for item in after[len(kept) :]] == list(new)
    names = {item.name for item in kept}
    missing = [item.name for item in before if item.name not in names]
    assert all(may_go(name) for name in missing), missing
    assert [wire(i) for i in before if i.name in names] == [wire(i) for i in kept]


def _assert_nodes(
    before: onnx.GraphProto, after: onnx.GraphProto, read: set[str], ir: int, added: list[str]
) -> set[str]:
    """Nodes in order: each the same, or the chain in its place, or a constant no longer read."""
    rest = list(after.node)
    gone: set[str] = set()
    for node in before.node:
        chain = []
        while rest and _stands_for(rest[0], node):
            chain.append(rest.pop(0))
        if chain:
            gone |= _assert_chain(node, chain, added)
        elif rest and list(rest[0].output) == list(node.output):
            _assert_same_node(node, rest.pop(0), read, ir, added)
        else:
            assert node.op_type in COMPUTES, f"{node.op_type} is gone"
            assert not set(node.output) & read
            gone.update(node.output)
    assert not rest, f"{rest[0].op_type} came out of nothing"
    return gone


def _stands_for(new: onnx.NodeProto, node: onnx.NodeProto) -> bool:
    if origin(new) is None or origin(node) is not None:
        return False
    moved = new.name.startswith(f"{node.name or node.output[0]}/widthfold/")
    return moved or (new.name == node.name and origin(new) == node.output[0])


def _assert_chain(node: onnx.NodeProto, chain: list[onnx.NodeProto], added: list[str]) -> set[str]:
    """One node is the Conv, or an op that was carried; return the outputs that no longer are.

    A node that slides a window becomes a Conv.
    """
    (heir,) = [new for new in chain if new.name == node.name]
    assert node.op_type in (*LINEAR, *CARRY)
    op = "Conv" if node.op_type == "ConvTranspose" else node.op_type
    assert (heir.op_type, heir.doc_string) == (op, node.doc_string)
    assert {p.key: p.value for p in node.metadata_props}.items() <= {
        p.key: p.value for p in heir.metadata_props
    }.items()
    if node.op_type not in LINEAR:
        assert [wire(a) for a in heir.attribute] == [wire(a) for a in node.attribute]
    for new in chain:
        if new is not heir:
            assert new.op_type in ("Reshape", "Transpose", "Pad", "Slice", "DepthToSpace")
            assert new.domain == ""
            added.append(new.name)
        added += [name for name in new.output if name not in (new.name, *node.output)]
    made = {name for new in chain for name in new.output}
    return set(node.output) - made


def _assert_same_node(
    before: onnx.NodeProto, after: onnx.NodeProto, read: set[str], ir: int, added: list[str]
) -> None:
    if not bodies(before):
        assert wire(before) == wire(after)
        return
    assert wire(before, "attribute") == wire(after, "attribute")
    for old, new in zip(before.attribute, after.attribute, strict=True):
        assert wire(old, "g", "graphs") == wire(new, "g", "graphs")
    for old_body, new_body in zip(bodies(before), bodies(after), strict=True):
        _assert_graph(old_body, new_body, read, ir, added)


# --- the probe models ---------------------------------------------------------------------------

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


def folded(model: onnx.ModelProto, tmp_path: Path) -> tuple[onnx.ModelProto, int]:
    """What comes out of memory; the way through files must give the same."""
    untouched = model.SerializeToString()
    result, sites = fold_model(model, OPTIONS)
    assert model.SerializeToString() == untouched
    path, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    path.write_bytes(untouched)
    report = optimize(path, out, OPTIONS, None)
    assert report.sites == sites
    assert onnx.ModelProto.FromString(out.read_bytes()) == result
    return result, report.summary.folded


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.__name__)
def test_a_feature_survives(feature, tmp_path):
    model = feature()
    result, count = folded(model, tmp_path)
    kinds = [n.op_type for g in graphs(model.graph) for n in g.node]
    assert 0 < kinds.count("Conv") <= count <= sum(kind in LINEAR for kind in kinds)
    added = assert_only_folded(model, result)
    assert all("/widthfold" in name for name in added)
    check_model(result, None)
    assert passes(result) or not passes(model)


@pytest.mark.parametrize("raw", [False, True], ids=["typed", "raw"])
@pytest.mark.parametrize("kind", sorted(DTYPES), ids=TensorProto.DataType.Name)
def test_an_initializer_of_every_dtype_survives(kind, raw, tmp_path):
    if raw and kind == TensorProto.STRING:
        pytest.skip("strings are never raw")
    model = base()
    count = 5
    if kind == TensorProto.STRING:
        tensor = helper.make_tensor("k", kind, [count], [b"\xff", b"", b"a", b"b", b"c"])
    elif raw:
        size = (count * BITS[kind] + 7) // 8
        data = RNG.integers(0, 2 if kind == TensorProto.BOOL else 256, size).astype(np.uint8)
        data[-1] &= (1 << (count * BITS[kind] - 1) % 8 + 1) - 1  # padding is zero
        tensor = TensorProto(name="k", data_type=kind, dims=[count], raw_data=data.tobytes())
    else:
        tensor = helper.make_tensor("k", kind, [count], [0, 1, 1, 0, 1])
        assert not tensor.HasField("raw_data")
    noted(tensor)
    model.graph.initializer.append(tensor)
    result, count = folded(model, tmp_path)
    assert count == 1
    assert_only_folded(model, result)


@pytest.mark.parametrize("version", range(4, onnx.IR_VERSION + 1))
def test_every_ir_version_survives(version, tmp_path):
    model = base()
    model.ir_version = version
    model.opset_import[0].version = 9
    result, count = folded(model, tmp_path)
    assert count == 1
    assert_only_folded(model, result)


@pytest.mark.parametrize("version", [3, 4])
def test_the_runtime_asks_for_the_same_inputs(version):
    """Below IR version 4 constants are inputs that the runtime does not ask for."""
    ort = pytest.importorskip("onnxruntime")
    model = old_inputs()
    if version == 4:
        del model.graph.input[1:]
    model.ir_version = version
    result, _ = fold_model(model, OPTIONS)
    sessions = [ort.InferenceSession(m.SerializeToString()) for m in (model, result)]
    for ask in ("get_inputs", "get_overridable_initializers", "get_outputs"):
        first, second = ([(v.name, v.type, v.shape) for v in getattr(s, ask)()] for s in sessions)
        assert first == second


def test_negative_zeros_and_subnormals_of_the_folded_weight_are_copied_as_bits():
    model = base()
    bits = np.frombuffer(model.graph.initializer[0].raw_data, np.uint32).copy()
    bits[::5], bits[::7], bits[::11] = 0x80000000, 0x00000001, 0x7F7FFFFF
    model.graph.initializer[0].raw_data = bits.tobytes()
    result, _ = fold_model(model, OPTIONS)
    tensor = next(t for t in result.graph.initializer if t.name.startswith("w/"))
    placed = np.frombuffer(tensor.raw_data, np.uint32)
    assert set(bits.tolist()) | {0} == set(placed.tolist()) | {0}


# --- sites that are left alone for what is said about them ---------------------------------------


def test_a_sharded_conv_is_refused():
    model = devices()
    configuration = model.graph.node[0].device_configurations.add(configuration_id="two")
    configuration.sharding_spec.add(tensor_name="c", device=[0, 1])
    result, sites = fold_model(model, OPTIONS)
    assert [site.code for site in sites] == ["sharded"]
    assert result == model


def test_an_annotated_weight_is_refused():
    model = base()
    model.graph.quantization_annotation.add(tensor_name="w")
    result, sites = fold_model(model, OPTIONS)
    assert [site.code for site in sites] == ["weight-annotated"]
    assert result == model


def training() -> onnx.ModelProto:
    model = base()
    step = inner_graph("step", "(float[3, 2, 3, 3] grad) => (float[3, 2, 3, 3] moved) {}")
    step.node.append(helper.make_node("Sub", ["w", "grad"], ["moved"], name="conv/widthfold/conv"))
    info = model.training_info.add(algorithm=step)
    info.update_binding.add(key="w", value="moved")
    noted(step)
    return model


def test_a_weight_that_training_changes_is_refused():
    model = training()
    result, sites = fold_model(model, OPTIONS)
    assert [site.code for site in sites] == ["weight-trained"]
    assert result == model


def test_training_of_something_else_is_carried(tmp_path):
    model = training()
    model.graph.initializer.append(numpy_helper.from_array(WEIGHT, "other"))
    info = model.training_info[0]
    info.update_binding[0].key = info.algorithm.node[0].input[0] = "other"
    result, count = folded(model, tmp_path)
    assert count == 1
    assert "conv/widthfold/conv" not in assert_only_folded(model, result)


def test_nothing_is_said_about_what_the_graph_library_cannot_carry(tmp_path):
    path = tmp_path / "in.onnx"
    path.write_bytes(sparse_initializer().SerializeToString())
    code = (
        "import sys; from pathlib import Path; import widthfold_onnx as w; "
        "w.optimize(Path(sys.argv[1]), None, w.FoldOptions(factor=2))"
    )
    done = subprocess.run([sys.executable, "-c", code, path], check=True, capture_output=True)
    assert (done.stdout, done.stderr) == (b"", b"")


# --- the models inside the onnx package ----------------------------------------------------------


def passes(model: onnx.ModelProto) -> bool:
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True


def test_models_of_the_onnx_package():
    options = FoldOptions(factor=2, ragged=True, max_channels=1 << 20)
    assert len(WHEEL) > 100
    seen = 0
    for path in WHEEL:
        model = onnx.load(path, load_external_data=False)
        result, sites = fold_model(model, options, path.parent)
        if any(site.status == "folded" for site in sites):
            seen += 1
            assert_only_folded(model, result)
        else:
            assert result == model, path.name
        assert passes(result) or not passes(model), path.name
    assert seen > 10
