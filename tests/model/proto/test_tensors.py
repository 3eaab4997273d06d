"""Weights outside the file: which places and lengths are taken."""

import os
from pathlib import Path, PureWindowsPath

import pytest
from onnx import TensorProto

from tests.model.checked import (
    CALL,
    CONDITION,
    FLOAT,
    SIN,
    accepts,
    branch,
    function,
    if_node,
    model,
    node,
    refuses,
)
from widthfold_onnx.model.proto import tensors as tensors_module


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
        ({"location": "C:w.bin"}, "absolute"),
        ({"location": "C:/w.bin"}, "absolute"),
        ({"location": "\\w.bin"}, "absolute"),
        ({"location": "\\\\server\\share\\w.bin"}, "absolute"),
        ({"location": "//server/share/w.bin"}, "absolute"),
        ({"location": "sub\\..\\..\\w.bin"}, "leaves"),
        ({"location": "/dev/zero"}, "absolute"),
        ({"location": "w.bin/x"}, "passes through"),
        ({"location": "n" * 300}, "too long"),
    ],
)
def test_refuses_external_data_that_do_not_fit(external, entries, message):
    refuses(external(**entries), message, external.folder)


def test_a_backslash_is_a_separator_on_windows_alone(external, monkeypatch):
    (external.folder / "w.bin").rename(external.folder / "sub\\w.bin")
    accepts(external(location="sub\\w.bin"), external.folder)
    monkeypatch.setattr(tensors_module, "PurePath", PureWindowsPath)
    refuses(external(location="sub\\w.bin"), "No such file", external.folder)
    (external.folder / "real").mkdir()
    (external.folder / "sub\\w.bin").rename(external.folder / "real" / "w.bin")
    accepts(external(location="real\\w.bin"), external.folder)
    (external.folder / "sub").symlink_to("real")
    refuses(external(location="sub\\w.bin"), "passes through a link", external.folder)


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
    proto = external()
    proto.graph.initializer[0].external_data.add(key="offset", value="0")
    refuses(proto, "twice", external.folder)
    proto = external()
    proto.graph.initializer[0].raw_data = bytes(16)
    refuses(proto, "both", external.folder)
    proto = external()
    proto.graph.initializer[0].data_type = TensorProto.STRING
    refuses(proto, "strings", external.folder)


@pytest.mark.parametrize("where", ["subgraph", "attribute", "function", "training"])
def test_finds_external_data_everywhere(external, where):
    weight = external(length="12").graph.initializer[0]
    constant = node("Constant", [], ["k"], value=weight)
    if where == "subgraph":
        then = branch("then", [node("Add", ["X", "W"], ["a"])], "a", [weight])
        proto = model([if_node(then)], [CONDITION])
    elif where == "attribute":
        proto = model([constant, *SIN])
    elif where == "function":
        proto = model(CALL, functions=[function("f", [constant, node("Sin", ["a"], ["b"])])])
    else:
        proto = model(SIN)
        proto.training_info.add().algorithm.initializer.append(weight)
    refuses(proto, "12 external bytes", external.folder)


@pytest.mark.parametrize(("links", "expected"), [(0, "accepted"), (1, "accepted"), (2, "refused")])
def test_hard_links_are_refused_where_the_system_counts_them(
    external, monkeypatch, links, expected
):
    status = list((external.folder / "w.bin").lstat())
    status[3] = links
    monkeypatch.setattr(Path, "lstat", lambda self: os.stat_result(status))
    if expected == "accepted":
        accepts(external(), external.folder)
    else:
        refuses(external(), "hard links", external.folder)
