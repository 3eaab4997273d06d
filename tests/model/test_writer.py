"""Files that are written at once or not at all, with their external data."""

import stat
from contextlib import contextmanager

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from widthfold_onnx.errors import InternalError, InvalidModelError, UsageError
from widthfold_onnx.model import atomic, writer
from widthfold_onnx.model.loader import load
from widthfold_onnx.model.writer import copy_model, written

SIZES = {"a": 40, "b": 1 << 19, "c": 7}
NUMBERS = {
    name: np.random.default_rng(size).standard_normal(size).astype(np.float32)
    for name, size in SIZES.items()
}
OLD = b"the old output"


def loads(path):
    """Accept what loads."""
    load(path)
    return True


def plain_model():
    nodes = [helper.make_node("Concat", list(SIZES), ["Y"], axis=0)]
    output = helper.make_tensor_value_info("Y", TensorProto.FLOAT, [sum(SIZES.values())])
    constants = [numpy_helper.from_array(array, name) for name, array in NUMBERS.items()]
    graph = helper.make_graph(nodes, "g", [], [output], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def external_model(folder, location="weights.bin"):
    """Write a model whose weights are in one file, and return its path."""
    proto, at = plain_model(), 0
    (folder / location).parent.mkdir(parents=True, exist_ok=True)
    with (folder / location).open("wb") as file:
        for tensor in proto.graph.initializer:
            data = tensor.raw_data
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            for key, text in (("location", location), ("offset", at), ("length", len(data))):
                tensor.external_data.add(key=key, value=str(text))
            at += file.write(data)
    path = folder / "in.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def numbers(path):
    proto = onnx.load(path)
    return {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}


def assert_same_numbers(path):
    written = numbers(path)
    assert set(written) == set(NUMBERS)
    for name, array in NUMBERS.items():
        np.testing.assert_array_equal(written[name], array)


def files(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def source(tmp_path):
    (tmp_path / "source").mkdir()
    return external_model(tmp_path / "source")


@pytest.fixture
def out(tmp_path):
    (tmp_path / "out").mkdir()
    path = tmp_path / "out" / "model.onnx"
    path.write_bytes(OLD)
    return path


@contextmanager
def largest_file(size):
    resource = pytest.importorskip("resource")
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def write_model(proto, out, *, accepts, **options):
    """Write a model, and publish it if the temporary file is accepted."""
    with written(proto, out, **options) as file:
        if accepts(file.path):
            file.publish()
        return file.is_published()


# ---------------------------------------------------------------- success


def test_writes_and_replaces(out):
    write_model(plain_model(), out, source_folder=None, accepts=loads)
    assert files(out.parent) == ["model.onnx"]
    assert_same_numbers(out)
    plain = out.parent / "plain"
    plain.touch()
    assert stat.S_IMODE(out.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_the_check_sees_the_whole_file_before_the_old_one_goes(out):
    seen = []

    def look(path):
        seen.append(path)
        assert out.read_bytes() == OLD
        assert path.name.startswith(atomic.TEMPORARY_PREFIX)
        assert_same_numbers(path)
        return True

    assert write_model(plain_model(), out, source_folder=None, accepts=look)
    assert len(seen) == 1


def test_external_data_move_into_one_file_with_a_hash(source, out):
    loaded = load(source)
    write_model(loaded.proto, out, source_folder=source.parent, accepts=loads)
    assert_same_numbers(out)
    assert len(files(out.parent)) == 2
    places = [
        {entry.key: entry.value for entry in tensor.external_data}
        for tensor in load(out).proto.graph.initializer
    ]
    assert {place["location"] for place in places} == set(files(out.parent)) - {out.name}
    aligns = (64, 65536, 64)  # "b" is 2 MiB
    assert not any(int(p["offset"]) % align for p, align in zip(places, aligns, strict=True))
    assert out.stat().st_size < 1000


def test_the_same_model_gives_the_same_bytes(source, out):
    def bytes_of_files():
        write_model(load(source).proto, out, source_folder=source.parent, accepts=loads)
        return {path.name: path.read_bytes() for path in out.parent.iterdir()}

    first = bytes_of_files()
    assert bytes_of_files() == first


def test_another_content_gets_another_name_and_the_old_file_stays(source, out):
    write_model(load(source).proto, out, source_folder=source.parent, accepts=loads)
    before = set(files(out.parent))
    document = plain_model()
    document.graph.initializer[0].raw_data = bytes(160)
    write_model(document, out, source_folder=None, accepts=loads, externalize=["a", "b"])
    assert before < set(files(out.parent))
    np.testing.assert_array_equal(numbers(out)["a"], np.zeros(40))
    np.testing.assert_array_equal(numbers(out)["c"], NUMBERS["c"])


def test_tensors_that_share_bytes_go_on_sharing(source, out):
    document = load(source).proto
    twin = document.graph.initializer.add()
    twin.CopyFrom(document.graph.initializer[1])
    twin.name = "d"
    write_model(document, out, source_folder=source.parent, accepts=loads)
    size = sum(path.stat().st_size for path in out.parent.iterdir())
    assert size < 1.1 * 4 * sum(SIZES.values())


# ---------------------------------------------------------------- faults


def test_a_file_that_is_not_accepted_leaves_everything_as_it_was(source, out):
    def refuses(path):
        assert_same_numbers(path)
        return False

    loaded = load(source)
    assert not write_model(loaded.proto, out, source_folder=source.parent, accepts=refuses)
    assert out.read_bytes() == OLD
    assert files(out.parent) == ["model.onnx"]
    assert_same_numbers(source)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, InvalidModelError, OSError])
def test_a_failed_check_leaves_everything_as_it_was(source, out, error):
    def fail(path):
        assert_same_numbers(path)
        raise error("no")

    with pytest.raises(error, match="no"):
        write_model(load(source).proto, out, source_folder=source.parent, accepts=fail)
    assert out.read_bytes() == OLD
    assert files(out.parent) == ["model.onnx"]
    assert_same_numbers(source)


def test_a_failure_keeps_the_file_that_the_old_model_needs(source, out):
    write_model(load(source).proto, out, source_folder=source.parent, accepts=loads)

    def fail(path):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_model(load(source).proto, out, source_folder=source.parent, accepts=fail)
    assert_same_numbers(out)


@pytest.mark.parametrize("size", [0, 300, 1 << 20])
def test_a_full_disk_leaves_everything_as_it_was(source, out, size):
    loaded = load(source)
    with largest_file(size), pytest.raises(UsageError, match="cannot write") as caught:
        write_model(loaded.proto, out, source_folder=source.parent, accepts=loads)
    assert str(caught.value).isprintable()
    assert out.read_bytes() == OLD
    assert files(out.parent) == ["model.onnx"]


@pytest.mark.parametrize("call", ["fsync", "replace", "open"])
def test_every_step_may_fail(source, out, monkeypatch, call):
    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")

    loaded = load(source)
    with monkeypatch.context() as patch:
        target = atomic.os if call == "fsync" else atomic.Path
        patch.setattr(target, call, fail)
        with pytest.raises(UsageError, match="No space left"):
            write_model(loaded.proto, out, source_folder=source.parent, accepts=loads)
    assert out.read_bytes() == OLD
    assert files(out.parent) == ["model.onnx"]


def test_an_interrupt_after_the_rename_keeps_the_new_model_whole(source, out, monkeypatch):
    calls = []

    def interrupt(folder):
        calls.append(folder)
        if len(calls) == 2:  # the first call is for the data
            raise KeyboardInterrupt

    monkeypatch.setattr(atomic, "sync_folder", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_model(load(source).proto, out, source_folder=source.parent, accepts=loads)
    assert_same_numbers(out)
    assert len(files(out.parent)) == 2


def test_data_that_changed_since_loading_are_refused(source, out):
    loaded = load(source)
    with (source.parent / "weights.bin").open("r+b") as file:
        file.truncate(100)
    with pytest.raises(InvalidModelError, match="of a file of 100"):
        write_model(loaded.proto, out, source_folder=source.parent, accepts=loads)
    assert out.read_bytes() == OLD


# ---------------------------------------------------------------- targets


def make_link(path):
    path.symlink_to("elsewhere")


@pytest.mark.parametrize(
    ("make", "message"), [(make_link, "symbolic link"), (lambda p: p.mkdir(), "not a regular")]
)
def test_refuses_targets_that_are_no_files(tmp_path, make, message):
    make(tmp_path / "out.onnx")
    with pytest.raises(UsageError, match=message):
        write_model(plain_model(), tmp_path / "out.onnx", source_folder=None, accepts=loads)
    assert files(tmp_path) == ["out.onnx"]


def test_refuses_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        write_model(plain_model(), tmp_path / "no" / "out.onnx", source_folder=None, accepts=loads)


def test_refuses_inputs_by_any_name_and_their_data(source):
    before = {path.name: path.read_bytes() for path in source.parent.iterdir()}
    loaded = load(source)
    other = source.parent / ".." / source.parent.name / "in.onnx"
    hard = source.parent / "hard.onnx"
    hard.hardlink_to(source)
    for target in (source, other, hard, source.parent / "weights.bin"):
        with pytest.raises(UsageError, match="is an input"):
            write_model(
                loaded.proto, target, source_folder=source.parent, accepts=loads, protected=[source]
            )
        with pytest.raises(UsageError, match="is an input"):
            copy_model(loaded, target)
    hard.unlink()
    assert before == {path.name: path.read_bytes() for path in source.parent.iterdir()}


def test_refuses_another_content_under_the_name_of_the_data(source, out):
    write_model(load(source).proto, out, source_folder=source.parent, accepts=loads)
    data = next(out.parent.glob("*.data"))
    data.write_bytes(b"changed")
    with pytest.raises(UsageError, match="something else"):
        write_model(load(source).proto, out, source_folder=source.parent, accepts=loads)
    assert data.read_bytes() == b"changed"


def test_refuses_to_externalize_what_is_not_there(out):
    with pytest.raises(InternalError, match="'z'"):
        write_model(plain_model(), out, source_folder=None, accepts=loads, externalize=["z"])


# ---------------------------------------------------------------- copies


def test_copies_a_model_byte_for_byte(source, out):
    copy_model(load(source), out)
    assert out.read_bytes() == source.read_bytes()
    assert_same_numbers(out)
    copy_model(load(source), out)
    assert files(out.parent) == ["model.onnx", "weights.bin"]


def test_copies_within_a_folder_share_the_data(source):
    target = source.parent / "copy.onnx"
    copy_model(load(source), target)
    assert files(source.parent) == ["copy.onnx", "in.onnx", "weights.bin"]
    assert_same_numbers(target)


def test_copies_data_in_folders_and_takes_them_back(tmp_path, out):
    path = external_model(tmp_path / "source", "deep/er/weights.bin")
    loaded = load(path)
    with largest_file(4096), pytest.raises(UsageError):
        copy_model(loaded, out)
    assert files(out.parent) == ["model.onnx"]
    assert out.read_bytes() == OLD
    copy_model(loaded, out)
    assert_same_numbers(out)


@pytest.mark.parametrize("name", ["in.onnx", "weights.bin"])
@pytest.mark.parametrize("moment", ["before", "meanwhile"])
def test_what_is_copied_is_what_was_loaded(source, out, monkeypatch, name, moment):
    """Another file of the same size takes its place; OUT stays, and no data are left beside it."""
    loaded, path = load(source), source.parent / name
    copy_bytes = writer._copy

    def exchange(*_: object) -> None:
        other = path.with_suffix(".other")
        other.write_bytes(path.read_bytes()[::-1])
        other.replace(path)

    def copy_and_exchange(file, copy):
        copy_bytes(file, copy)
        exchange()

    if moment == "before":
        exchange()
    else:
        monkeypatch.setattr(writer, "_copy", copy_and_exchange)
    with pytest.raises(InvalidModelError, match=r"^in.onnx was changed in the meantime$"):
        copy_model(loaded, out)
    assert (files(out.parent), out.read_bytes()) == (["model.onnx"], OLD)


def test_a_copy_never_replaces_other_data(source, out):
    other = out.parent / "weights.bin"
    for content in (b"mine", bytes((source.parent / "weights.bin").stat().st_size)):
        other.write_bytes(content)
        with pytest.raises(UsageError, match="something else"):
            copy_model(load(source), out)
        assert other.read_bytes() == content
        assert out.read_bytes() == OLD


def test_a_copy_does_not_write_through_links(tmp_path, out):
    path = external_model(tmp_path / "source", "deep/weights.bin")
    (tmp_path / "victim").mkdir()
    (out.parent / "deep").symlink_to(tmp_path / "victim")
    with pytest.raises(UsageError, match="symbolic link"):
        copy_model(load(path), out)
    assert not files(tmp_path / "victim")
    assert out.read_bytes() == OLD


def test_a_copy_is_not_called_like_its_data(tmp_path, out):
    path = external_model(tmp_path / "source", f"{out.name}")
    for _ in range(2):
        with pytest.raises(UsageError, match="choose another name"):
            copy_model(load(path), out)
        out.unlink(missing_ok=True)
    assert files(out.parent) == []
