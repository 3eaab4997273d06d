import io
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper, parser

from widthfold_onnx.errors import UnverifiedError, UsageError
from widthfold_onnx.options import Provider
from widthfold_onnx.runtime import session as session_module
from widthfold_onnx.runtime import stored
from widthfold_onnx.runtime.distributions import Distribution, distribution_of, draw
from widthfold_onnx.runtime.feeds import (
    find_shapes,
    made_up,
    open_dimensions,
    other_shapes,
    random_feeds,
)
from widthfold_onnx.runtime.ports import Port
from widthfold_onnx.runtime.session import Level, Session, open_session
from widthfold_onnx.runtime.stored import stored_feeds

SHARED = Path(__file__).parents[2].parent / "shared" / "models"
REAL = sorted(SHARED.glob("*.onnx"))
HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
IMAGE = [Port("image", "float32", ("N", 3, "H", "W"))]


def opened(folder, text):
    path = folder / "model.onnx"
    path.write_bytes(parser.parse_model(HEAD + text).SerializeToString())
    return open_session(path, Provider.CPU, Level.DISABLED)


def test_random_values_depend_on_seed_and_name_only():
    ports = [Port("a", "float32", (4,)), Port("b", "float32", (4,))]
    shapes = {"a": (4,), "b": (4,)}
    first = random_feeds(ports, 3, shapes)
    again = random_feeds(ports[::-1], 3, shapes)
    np.testing.assert_array_equal(first["a"], again["a"])
    assert not np.array_equal(first["a"], first["b"])
    assert not np.array_equal(first["a"], random_feeds(ports, 4, shapes)["a"])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_floats_are_normal_and_never_zero(dtype):
    array = random_feeds([Port("x", dtype, ())], 0, {"x": (1000,)})["x"]
    assert array.dtype == dtype
    assert np.count_nonzero(array) == 1000
    assert abs(float(array.astype(np.float64).std()) - 1) < 0.1


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int64", "uint64", "bool"])
def test_integers_are_small_indices(dtype):
    array = random_feeds([Port("x", dtype, ())], 0, {"x": (100,)})["x"]
    assert array.dtype == dtype
    assert set(array.tolist()) == {0, 1}


def test_strings_and_scalars():
    feeds = random_feeds(
        [Port("s", "string", (3,)), Port("n", "int64", ())], 0, {"s": (3,), "n": ()}
    )
    assert feeds["s"].dtype == object
    assert all(isinstance(item, str) for item in feeds["s"])
    assert feeds["n"].shape == ()


def test_a_type_without_random_values_is_named():
    with pytest.raises(UnverifiedError, match="input x is seq"):
        random_feeds([Port("x", "seq(tensor(float))", ())], 0, {"x": ()})


def test_open_dimensions_lead_at_axis_0():
    ports = [*IMAGE, Port("state", "float32", (2, "N", None))]
    expected = {"N": True, "H": False, "W": False, ("state", 2): False}
    assert open_dimensions(ports, {}) == expected
    assert open_dimensions(ports, {"image": (5, 3, 8, 9)}) == {("state", 2): False}


@pytest.mark.parametrize(
    ("fixed", "words"),
    [
        ({"picture": (1,)}, "picture, which is no input; there are: image"),
        ({"image": (1, 3)}, "2 dimensions; the model has 4"),
        ({"image": (1, 4, 8, 8)}, "size 4 where 3 holds"),
    ],
)
def test_a_fixed_shape_must_fit(fixed, words):
    with pytest.raises(UsageError, match=words):
        open_dimensions(IMAGE, fixed)


def test_a_symbol_has_one_size_everywhere(tmp_path):
    session = opened(
        tmp_path, "g (float[A, B] x, float[B, A] y) => (float[A, A] z) { z = MatMul(x, y) }"
    )
    shapes = find_shapes(session, {})
    assert shapes["x"] == shapes["y"][::-1]
    assert find_shapes(session, {"x": (3, 7)}) == {"x": (3, 7), "y": (7, 3)}


def test_other_shapes_differ_in_every_open_dimension(tmp_path):
    session = opened(tmp_path, "g (float[N, 3, L] x) => (float[N, 3, L] y) { y = Neg(x) }")
    first = find_shapes(session, {})
    second = other_shapes(session, {}, first)
    assert second is not None
    assert first["x"][1] == second["x"][1] == 3
    assert first["x"][0] != second["x"][0]
    assert first["x"][2] != second["x"][2]
    assert other_shapes(session, {"x": (1, 3, 8)}, {"x": (1, 3, 8)}) is None


def test_a_long_input_is_preferred_to_a_large_batch(tmp_path):
    wave = opened(tmp_path, "g (float[N, L] x) => (float[N, L] y) { y = Neg(x) }")
    assert find_shapes(wave, {}) == {"x": (1, 4096)}
    rows = opened(tmp_path, "g (float[N, 4] x) => (float[N, 4] y) { y = Neg(x) }")
    assert find_shapes(rows, {}) == {"x": (1, 4)}


def test_no_size_that_runs_says_what_to_pass(tmp_path):
    session = opened(
        tmp_path,
        "g (float[N] x) => (float[N] y) <int64[1] s = {777}> { z = Reshape(x, s)\n y = Neg(z) }",
    )
    with pytest.raises(UnverifiedError, match=r"--input-shape NAME:SIZE,\.\.\. or --inputs"):
        find_shapes(session, {})
    assert find_shapes(session, {"x": (777,)}) == {"x": (777,)}


@pytest.mark.skipif(not REAL, reason="the shared models are not here")
@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
def test_real_models_run_without_hints(path, monkeypatch):
    tries = []
    run = Session.run
    monkeypatch.setattr(
        session_module.Session, "run", lambda self, feeds: tries.append(1) or run(self, feeds)
    )
    session = open_session(path, Provider.CPU, Level.DISABLED)
    shapes = find_shapes(session, {})
    assert len(tries) <= 40
    for port in session.inputs:
        for dim, size in zip(port.dims, shapes[port.name], strict=True):
            assert dim == size or not isinstance(dim, int)


def test_five_seeds_cover_all_distributions():
    assert {distribution_of(seed) for seed in range(5)} == set(Distribution)
    assert distribution_of(5) is distribution_of(0) is Distribution.NORMAL


def drawn(kind, dtype=np.float64, seed=3):
    return draw(kind, np.random.default_rng(seed), (4000,)).astype(dtype)


@pytest.mark.parametrize("kind", list(Distribution))
def test_distributions_are_deterministic_and_finite(kind):
    np.testing.assert_array_equal(drawn(kind), drawn(kind))
    assert not np.array_equal(drawn(kind), drawn(kind, seed=4))
    half = drawn(kind, np.float16)
    assert np.isfinite(half).all()
    assert len(np.unique(half)) > 2


def test_what_distributions_look_like():
    uniform = drawn(Distribution.UNIFORM)
    assert 0 <= uniform.min() < 0.01 < 0.99 < uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 0.02
    assert set(drawn(Distribution.BYTES)) == set(range(256))
    constant = drawn(Distribution.CONSTANT)
    assert 5e-4 < constant.std() / abs(constant.mean()) < 2e-3
    wide = np.log10(np.abs(drawn(Distribution.RANGE)))
    assert -6 <= wide.min() < -5.9
    assert 1.9 < wide.max() <= 2
    assert abs(wide.mean() + 2) < 0.2
    assert 0.45 < np.mean(drawn(Distribution.RANGE) > 0) < 0.55


def test_an_open_batch_is_1_2_and_7(tmp_path):
    session = opened(tmp_path, "g (float[N, 3, 5] x) => (float[N, 3, 5] y) { y = Neg(x) }")
    made = made_up(session, {}, 5)
    batches = [item.feeds["x"].shape[0] for item in made.sets]
    assert (batches[0], batches[2], batches[3], batches[4]) == (1, 2, 7, 1)
    assert made.shapes == {"x": (1, 3, 5)}
    assert made.limits == []
    assert [len(item.feeds) for item in made_up(session, {}, 1).sets] == [1]


def test_a_batch_that_the_caller_or_the_model_fixes_stays(tmp_path):
    session = opened(tmp_path, "g (float[N, 3] x) => (float[N, 3] y) { y = Neg(x) }")
    made = made_up(session, {"x": (4, 3)}, 5)
    assert {item.feeds["x"].shape for item in made.sets} == {(4, 3)}
    session = opened(tmp_path, "g (float[2, 3] x) => (float[2, 3] y) { y = Neg(x) }")
    assert {item.feeds["x"].shape for item in made_up(session, {}, 5).sets} == {(2, 3)}


def test_a_batch_at_which_the_original_does_not_run_is_said_once(tmp_path):
    session = opened(
        tmp_path,
        "g (float[N, 3] x) => (float[N, 3] y) <int64[2] s = {1, 3}> { y = Reshape(x, s) }",
    )
    made = made_up(session, {}, 5)
    assert {item.feeds["x"].shape for item in made.sets} == {(1, 3)}
    assert made.limits == ["not compared at batch 2 or 7: the original does not run"]
    assert not any("batch" in item.label for item in made.sets)


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
    assert [one.label for one in stored_feeds(tmp_path, ports)] == ["test_data_set_0"]


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
        ({"x": np.array([None])}, "pickled"),
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


def test_a_header_that_declares_8_tib_costs_nothing(tmp_path):
    path = tmp_path / "bomb.npz"
    path.write_bytes(zipped(x=header((1 << 41,))))
    assert "declares 8796093022208 bytes" in refused(path)
    path = tmp_path / "bomb.npy"
    path.write_bytes(header((1 << 41,)))
    assert "declares 8796093022208 bytes" in refused(path)


def test_members_are_counted_together(tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "MAX_BYTES", 100)
    path = tmp_path / "in.npz"
    path.write_bytes(zipped(x=header((20,)) + b"a" * 80, y=header((20,)) + b"b" * 80))
    assert "holds more than 100 bytes" in refused(path, XY)


def test_a_member_that_expands_too_far(tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "MAX_RATIO", 50)
    path = tmp_path / "in.npz"
    path.write_bytes(zipped(x=header((30000,)) + bytes(120000)))
    assert "expands more than 50 times" in refused(path)


def test_a_member_that_is_there_twice(tmp_path):
    path = tmp_path / "in.npz"
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("x.npy", header((1, 3)) + bytes(12))
        archive.writestr("x", header((1, 3)) + bytes(12))
    path.write_bytes(stream.getvalue())
    assert "x] is there twice" in refused(path)


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
    assert "pickled" in refused(path)


def test_damaged_folders_and_other_files(tmp_path):
    assert "no such file" in refused(tmp_path / "none.npz")
    (tmp_path / "in.txt").write_text("1")
    assert "expected a folder" in refused(tmp_path / "in.txt")
    folder = tmp_path / "set"
    folder.mkdir()
    assert "0 input_*.pb; the model has 1" in refused(folder)
    (folder / "input_0.pb").write_bytes(b"\xff\xff\xff")
    assert "damaged" in refused(folder)
    (folder / "input_0.pb").write_bytes(b"")
    assert "no tensor" in refused(folder)
    outside = TensorProto(data_type=1, dims=[1, 3], data_location=TensorProto.EXTERNAL)
    (folder / "input_0.pb").write_bytes(outside.SerializeToString())
    assert "no tensor with its data inside" in refused(folder)
    short = TensorProto(data_type=1, dims=[100, 3], raw_data=b"1234")
    (folder / "input_0.pb").write_bytes(short.SerializeToString())
    refused(folder)
