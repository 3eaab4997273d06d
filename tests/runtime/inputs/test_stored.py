"""Stored inputs of a user: .npz, .npy and folders of .pb files."""

import io
import re
import struct
import zipfile

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

from widthfold_onnx.errors import UsageError
from widthfold_onnx.runtime.inputs import stored
from widthfold_onnx.runtime.inputs.stored import stored_feeds
from widthfold_onnx.runtime.session import Port

X = [Port("x", "float32", ("N", 3))]
XY = [*X, Port("y", "int64", (2,))]


def refused(path, inputs=X):
    with pytest.raises(UsageError) as caught:
        stored_feeds(path, inputs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_npz_by_names(tmp_path):
    path = tmp_path / "in.npz"
    x, y = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([7, 8])
    np.savez_compressed(path, x=x, y=y)
    (item,) = stored_feeds(path, XY)
    np.testing.assert_array_equal(item.feeds["x"], x)
    np.testing.assert_array_equal(item.feeds["y"], y)
    assert item.expected == ()


def test_an_npy_for_a_single_input(tmp_path):
    path = tmp_path / "in.npy"
    np.save(path, np.ones((5, 3), np.float32))
    (item,) = stored_feeds(path, X)
    assert item.feeds["x"].shape == (5, 3)
    assert "2 inputs" in refused(path, XY)


def save_tensor(folder, name, array):
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(numpy_helper.from_array(array).SerializeToString())


def test_a_test_data_set_in_the_order_of_its_numbers(tmp_path):
    ports = [Port(f"i{number}", "float32", (1,)) for number in range(11)]
    folder = tmp_path / "test_data_set_0"
    for number in range(11):
        save_tensor(folder, f"input_{number}.pb", np.array([number], np.float32))
    save_tensor(folder, "output_0.pb", np.array([99], np.float32))
    (item,) = stored_feeds(folder, ports)
    assert [float(item.feeds[f"i{number}"][0]) for number in range(11)] == list(range(11))
    assert [array.tolist() for array in item.expected] == [[99]]
    assert [entry.label for entry in stored_feeds(tmp_path, ports)] == ["test_data_set_0"]


def test_string_tensors(tmp_path):
    save_tensor(tmp_path / "d", "input_0.pb", np.array(["a", "b\u00e9"], dtype=object))
    (item,) = stored_feeds(tmp_path / "d", [Port("s", "string", (2,))])
    assert item.feeds["s"].tolist() == ["a", "b\u00e9"]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"z": np.ones((1, 3), np.float32)}, "z is no input of the model"),
        ({}, "x is missing"),
        ({"x": np.ones((1, 3))}, "x is float64; the model takes float32"),
        ({"x": np.ones(3, np.float32)}, "rank 1; the model takes 2"),
        ({"x": np.ones((1, 4), np.float32)}, "size 4 on axis 1; the model takes 3"),
        ({"x": np.array([None])}, "Object arrays cannot be loaded"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, arrays, words):
    path = tmp_path / "in.npz"
    np.savez(path, **arrays)
    assert words in refused(path)


def header(shape, descr="<f4"):
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text = text.ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def zipped(**members):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [("bomb.npz", zipped(x=header((1 << 41,)))), ("bomb.npy", header((1 << 41,)))],
)
def test_a_header_that_declares_8_tib_costs_nothing(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    # Systems that promise any memory notice at the first byte that is not there.
    assert re.search(r"allocate 8.00 TiB|EOF|cannot reshape", refused(tmp_path / name))
    resource = pytest.importorskip("resource")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 1 << 23  # KiB


def test_what_is_unpacked_is_counted_together(tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "MAX_INPUT_BYTES", 410)
    path = tmp_path / "in.npz"
    path.write_bytes(zipped(x=header((20,)) + b"a" * 80, y=header((20,)) + b"b" * 80))
    assert "more than 410 bytes" in refused(path, XY)
    path.write_bytes(zipped(x=header((30000,)) + bytes(120000)))
    assert "more than 410 bytes" in refused(path)
    np.save(tmp_path / "in.npy", np.ones((100, 3), np.float32))
    assert "more than 410 bytes" in refused(tmp_path / "in.npy")
    save_tensor(tmp_path / "set", "input_0.pb", np.ones((100, 3), np.float32))
    assert "more than 410 bytes" in refused(tmp_path / "set")


def test_a_member_that_lies_about_its_size_is_not_unpacked_further(tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "MAX_INPUT_BYTES", 1000)
    content = zipped(x=header((30000, 3)) + bytes(360000))
    path = tmp_path / "in.npz"
    path.write_bytes(content.replace(struct.pack("<I", 360128), struct.pack("<I", 500)))
    assert refused(path).startswith("--inputs in.npz: ")


def test_a_member_that_is_there_twice(tmp_path):
    path = tmp_path / "in.npz"
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("x.npy", header((1, 3)) + bytes(12))
        archive.writestr("x", header((1, 3)) + bytes(12))
    path.write_bytes(stream.getvalue())
    assert "x is there twice" in refused(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04 but no archive",
        zipped(x=b""),
        zipped(x=b"\x93NUMPY\x01\x00"),
        zipped(x=header((2, 3))),
        zipped(x=header((-1, 3))),
        zipped(x=header("('a',)")),
        zipped(x=header((2, 3), "no type")),
        zipped(x=header((2, 3)) + b"\0" * 24)[:-40],
    ],
)
def test_damaged_archives_are_told_in_one_line(tmp_path, content):
    path = tmp_path / "in.npz"
    path.write_bytes(content)
    assert refused(path).startswith("--inputs in.npz")


def test_pickles_are_not_read(tmp_path):
    path = tmp_path / "in.npy"
    np.save(path, np.array([{"a": 1}]), allow_pickle=True)
    assert "Object arrays cannot be loaded" in refused(path)


def test_damaged_folders_and_other_files(tmp_path):
    assert "no such file" in refused(tmp_path / "none.npz")
    (tmp_path / "in.txt").write_text("1")
    assert "expected a folder" in refused(tmp_path / "in.txt")
    folder = tmp_path / "set"
    folder.mkdir()
    assert "0 input_*.pb; the model has 1" in refused(folder)
    (folder / "input_0.pb").write_bytes(b"\xff\xff\xff")
    assert "Error parsing message" in refused(folder)
    (folder / "input_0.pb").write_bytes(b"")
    assert "no tensor" in refused(folder)
    outside = TensorProto(data_type=1, dims=[1, 3], data_location=TensorProto.EXTERNAL)
    (folder / "input_0.pb").write_bytes(outside.SerializeToString())
    assert "no tensor with its data inside" in refused(folder)
    short = TensorProto(data_type=1, dims=[100, 3], raw_data=b"1234")
    (folder / "input_0.pb").write_bytes(short.SerializeToString())
    refused(folder)
