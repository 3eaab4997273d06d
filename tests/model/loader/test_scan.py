"""The scan of the bytes of a file before protobuf reads them: depth, counts, broken ends."""

import gzip

import pytest
from onnx import TensorProto, helper

from widthfold_onnx.errors import InvalidModelError
from widthfold_onnx.model import loader
from widthfold_onnx.model.loader import scan_wire
from widthfold_onnx.runtime.session import open_session


def varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def field(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def nested(depth):
    graph = b""
    for _ in range(depth):
        graph = field(1, field(5, field(6, graph)))
    return field(7, graph)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "git lfs pull"),
        (b"<!DOCTYPE html>\n<html>Not Found</html>", "text, not an ONNX model"),
        (field(7, b"\x0a\x05abc"), "declared"),
        (field(7, field(1, b"")) + b"\x3a", "past the end"),
        (b"\x3a\x03\x0a\x01", "declared"),
        (b"\x09\x00\x00", "past its message"),
        (b"\x08\xff", "past the end"),
        (b"\x3b\x00", "wire type 3"),
        (b"\x00\x00", "field number 0"),
        (b"\xff" * 11, "longer than 10 bytes"),
    ],
)
def test_refuses_what_is_no_protobuf(data, message):
    with pytest.raises(InvalidModelError, match=message):
        scan_wire(data)


@pytest.mark.parametrize("size", range(1, 60))
def test_no_prefix_of_a_model_does_more_than_raise(size):
    node = helper.make_node("Sin", ["x"], ["y"], "n", width=1)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "xy"]
    data = helper.make_model(helper.make_graph([node], "g", values[:1], values[1:]))
    whole = data.SerializeToString()
    scan_wire(whole)
    try:
        scan_wire(whole[:size])
    except InvalidModelError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x18\x00\x00\x00TFL3" + bytes(40), "TensorFlow Lite"),
        (b"PK\x03\x04\x00\x00" + bytes(40), "zip archive"),
        (gzip.compress(b"model", mtime=0), "gzip archive: unpack it"),
        (b"\x40\x00\x00\x00\x00\x00\x00\x00" + b'{"w":{"dtype":"F32"}}', "safetensors"),
        (b"\x89HDF\r\n\x1a\n" + bytes(40), "HDF5"),
        (b"\x93NUMPY\x01\x00v\x00{'descr': '<f4'}", "numpy array, no model"),
    ],
)
def test_other_formats_are_named(data, message):
    with pytest.raises(InvalidModelError, match=rf"^not ONNX, but .*{message}"):
        scan_wire(data)


def test_a_file_in_the_format_of_the_runtime_is_named(tmp_path):
    node = helper.make_node("Relu", ["x"], ["y"])
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "xy"]
    graph = helper.make_graph([node], "g", values[:1], values[1:])
    opsets = [helper.make_opsetid("", 17)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    open_session(proto, optimized=tmp_path / "m.ort")
    with pytest.raises(InvalidModelError, match=r"^m\.ort: .*\(\.ort\): give the \.onnx file"):
        loader.load(tmp_path / "m.ort")


@pytest.mark.parametrize("producer", ["ORTM", "TFL3"])
def test_a_producer_may_have_the_name_of_another_format(producer):
    scan_wire(b"\x08\x07" + field(2, producer.encode()) + nested(1))


def test_depth_limit_is_exact():
    scan_wire(nested(loader.MAX_DEPTH + 1))
    with pytest.raises(InvalidModelError, match="32 deep"):
        scan_wire(nested(loader.MAX_DEPTH + 2))


def test_depth_needs_no_stack():
    with pytest.raises(InvalidModelError, match="deep"):
        scan_wire(nested(2000))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (field(7, b"\x0a\x00" * (4 << 10)), "more than 1000 nodes"),
        (field(7, b"\x2a\x00" * (2 << 10)), "more than 1000 tensors"),
        (b"\x3a\x02\x0a\x00" * (2 << 10), "more than"),
        (field(7, b"\x5a\x00" * (3 << 10)), "more than 2000"),
        (field(7, field(1, b"\x2a\x00" * (3 << 10))), "more than 2000"),
        (field(7, field(1, b"\x0a\x00" * (9 << 10))), "more than 8000 fields"),
        (b"\xca\x01\x00" * (3 << 10), "more than 2000"),
        (field(7, field(5, b"\x6a\x00" * (3 << 10))), "more than 2000"),
        (
            field(7, field(11, field(2, field(1, field(2, b"\x0a\x00" * (3 << 10)))))),
            "more than 2000",
        ),
        (field(20, field(1, b"\x0a\x00" * (2 << 10))), "more than 1000 nodes"),
    ],
    ids=[
        "nodes",
        "initializers",
        "graphs in one",
        "inputs",
        "attributes",
        "names",
        "functions",
        "external entries",
        "dims of a value",
        "training nodes",
    ],
)
def test_counts_are_bounded(data, message, monkeypatch):
    """The limits are a thousandth of the true limits, up to which a scan takes a second."""
    for name in ("MAX_NODES", "MAX_TENSORS", "MAX_MESSAGES", "MAX_FIELDS"):
        monkeypatch.setattr(loader, name, getattr(loader, name) // 1000)
    for name, limit in loader._LIMITS.items():
        monkeypatch.setitem(loader._LIMITS, name, limit // 1000)
    with pytest.raises(InvalidModelError, match=message):
        scan_wire(data)


def test_a_node_count_at_the_limit_is_no_error():
    scan_wire(field(7, b"\x0a\x00" * loader.MAX_NODES))


def test_weights_are_jumped_over():
    # The content of raw_data looks like the start of many nodes, and is not counted.
    scan_wire(field(7, field(5, field(9, b"\x0a\x00" * (4 << 20)))))


def test_fifty_thousand_nodes_are_no_error():
    nodes = [helper.make_node("Sin", [f"t{i}"], [f"t{i + 1}"], f"n{i}") for i in range(50_000)]
    data = helper.make_model(helper.make_graph(nodes, "g", [], [])).SerializeToString()
    scan_wire(data)
