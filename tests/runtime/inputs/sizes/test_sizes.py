"""Sizes of open dimensions at which a model runs, and demanded shapes that do not fit."""

from dataclasses import replace

import pytest
from onnx import parser

from tests.shared import MODELS
from widthfold_onnx.errors import UnverifiedError, UsageError
from widthfold_onnx.options import Provider, RuntimeOptions
from widthfold_onnx.runtime import session as session_module
from widthfold_onnx.runtime.inputs import sizes as sizes_module
from widthfold_onnx.runtime.inputs.input_sets import random_sets
from widthfold_onnx.runtime.inputs.sizes import (
    any_shapes,
    find_shapes,
    input_dimensions,
    second_compared_shapes,
)
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.runtime.session import Port, Session, open_session

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
IMAGE = [Port("image", "float32", ("N", 3, "H", "W"))]


def opened(folder, text):
    path = folder / "model.onnx"
    path.write_bytes(parser.parse_model(HEAD + text).SerializeToString())
    return open_session(path, RuntimeOptions(provider=Provider.CPU), Level.DISABLED)


def test_several_elements_of_a_value_are_an_extent():
    ports = [*IMAGE, Port("rate", "float32", ("R",), (1.0, 2.0, 3.0)), Port("r", "float32", ("R",))]
    assert input_dimensions(ports, {}).by_input["r"] == [3]
    assert input_dimensions(ports, {"r": (5,), "rate": (5,)}).by_input["rate"] == (5,)


@pytest.mark.parametrize(
    ("fixed", "words"),
    [
        ({"picture": (1,)}, "picture, which is no input; there are: image"),
        ({"image": (1, 3)}, "image is declared N,3,H,W, not 1,3"),
        ({"image": (1, 4, 8, 8)}, "image is declared N,3,H,W, not 1,4,8,8"),
    ],
)
def test_a_fixed_shape_must_fit(fixed, words):
    with pytest.raises(UsageError, match=words):
        input_dimensions(IMAGE, fixed)


def test_stored_sizes_that_contradict_a_symbol_are_named():
    ports = [*IMAGE, Port("mask", "float32", ("N", 1, "H", "W"))]
    fixed = {"image": (1, 3, 8, 8), "mask": (1, 1, 8, 12)}
    words = "^mask has a size 12 where W is 8: --input-shape and --inputs give one size to each"
    with pytest.raises(UsageError, match=words):
        input_dimensions(ports, fixed)


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
    second = second_compared_shapes(session, {}, first)
    assert second is not None
    assert first["x"][1] == second["x"][1] == 3
    assert first["x"][0] != second["x"][0]
    assert first["x"][2] != second["x"][2]
    assert second_compared_shapes(session, {"x": (1, 3, 8)}, {"x": (1, 3, 8)}) is None


def test_open_dimensions_of_different_names_differ_in_the_second_size(tmp_path):
    session = opened(tmp_path, "g (float[1, 1, h, w] x) => (float[1, 1, h, w] y) { y = Neg(x) }")
    first = {"x": (1, 1, 64, 64)}
    second = second_compared_shapes(session, {}, first)
    assert second is not None
    height, width = second["x"][2:]
    assert height != width
    assert height % 2 or width % 2


def test_batches_of_different_names_differ_in_the_second_size(tmp_path):
    text = (
        "g (float[n, 2] x, float[m, 2] z) => (float[n, 2] y, float[m, 2] v) {y = Neg(x) v = Neg(z)}"
    )
    session = opened(tmp_path, text)
    second = second_compared_shapes(session, {}, {"x": (1, 2), "z": (1, 2)})
    assert second is not None
    assert second["x"][0] != second["z"][0]


def test_extents_that_must_be_even_differ_by_a_power_of_two(tmp_path):
    text = """g (float[1, 1, h, w] x) => (float[1, c, d, e] y) {
      y = SpaceToDepth <blocksize = 8> (x)
    }"""
    session = opened(tmp_path, text)
    second = second_compared_shapes(session, {}, {"x": (1, 1, 64, 64)})
    assert second is not None
    height, width = second["x"][2:]
    assert height == 2 * width


def test_extents_that_must_be_equal_are_equal_in_the_second_size_too(tmp_path):
    session = opened(tmp_path, "g (float[n] x, float[m] z) => (float[n] y) { y = Max(x, z) }")
    second = second_compared_shapes(session, {}, {"x": (3,), "z": (3,)})
    assert second is not None
    assert second["x"] == second["z"] != (3,)


def test_a_length_that_a_mask_has_at_axis_0_is_compared_at_an_odd_extent(tmp_path):
    text = "g (float[N, 4, T] x, float[T] mask) => (float[N, 4, T] y) { y = Mul(x, mask) }"
    session = opened(tmp_path, text)
    first = find_shapes(session, {})
    second = second_compared_shapes(session, {}, first)
    batch, _, length = second["x"]
    assert (batch, length % 2, second["mask"]) == (3 * first["x"][0], 1, (length,))
    assert length > first["x"][2]


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


@pytest.mark.skipif(not MODELS, reason="the shared models are not here")
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_real_models_run_without_hints(path, monkeypatch):
    tries = []
    run = Session.run
    monkeypatch.setattr(
        session_module.Session, "run", lambda self, *args: tries.append(1) or run(self, *args)
    )
    session = open_session(path, RuntimeOptions(provider=Provider.CPU), Level.DISABLED)
    shapes = find_shapes(session, {})
    assert len(tries) <= 40
    for port in session.inputs:
        for dim, size in zip(port.dims, shapes[port.name], strict=True):
            assert dim == size or not isinstance(dim, int)


def test_a_size_that_did_not_run_is_not_tried_again(tmp_path, monkeypatch):
    tries = []
    run = Session.run

    def spy(self, feeds, *args):
        tries.append(feeds["x"].shape)
        return run(self, feeds, *args)

    monkeypatch.setattr(session_module.Session, "run", spy)
    text = "g (float[N] x) => (float[N] y) <int64[1] s = {777}> { z = Reshape(x, s)\n y = Neg(z) }"
    session = opened(tmp_path, text)
    with pytest.raises(UnverifiedError):
        find_shapes(session, {})
    assert len(tries) == len(set(tries)) > 20
    tries.clear()
    words = r"^no random input was found that runs, x 5 \(model.onnx does not run: "
    with pytest.raises(UnverifiedError, match=words):
        find_shapes(session, {"x": (5,)})
    assert tries == [(5,)]


def test_the_searches_for_all_combinations_share_their_work(tmp_path, monkeypatch):
    """One budget bounds the searches for the named sizes, the larger one and each combination.

    The search for the second size that is compared has its own.
    """
    budgets = []
    init = sizes_module._Tries.__init__

    def noted(self, session, fixed, budget=None, **others):
        budgets.append(budget)
        init(self, session, fixed, budget, **others)

    monkeypatch.setattr(sizes_module._Tries, "__init__", noted)
    session = opened(tmp_path, "g (float[N] x, int64 m) => (float[N] y) { y = Neg(x) }")
    cases = ({"m": (1.0,)}, {"m": (2.0,)})
    random_sets(replace(session, cases=cases), ({},), 1, any_shapes)
    assert len(budgets) == 4
    assert len(set(budgets) - {None}) == 1


def test_a_second_size_that_takes_too_many_products_is_shorter(tmp_path):
    session = opened(tmp_path, "g (float[1, T] x) => (float[1, T] y) { y = Neg(x) }")
    first, shapes = {"x": (1, 64)}, []

    def is_light(tried):
        shapes.append(tried["x"][1])
        return tried["x"][1] < 200

    assert second_compared_shapes(session, {}, first, is_light) == {"x": (1, 127)}
    assert shapes == [1023, 1024, 255, 256, 127]
    assert second_compared_shapes(session, {}, first, lambda _: False) == {"x": (1, 128)}
