"""Several sizes: how they are named, found and bounded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
import pytest
from onnx import helper, parser

import widthfold_onnx as wf
from tests.small_models import build
from widthfold_onnx.cli.options import paired_sizes, parse_shape
from widthfold_onnx.errors import GivenUpError, UnverifiedError, UsageError
from widthfold_onnx.model.shapes.table import ShapeTable
from widthfold_onnx.options import ANY_SIZE, FoldOptions, Provider, RuntimeOptions, VerifyOptions
from widthfold_onnx.runtime.inputs import sizes as sizes_module
from widthfold_onnx.runtime.inputs.input_sets import input_sets, random_sets, timed_inputs
from widthfold_onnx.runtime.inputs.sizes import (
    any_shapes,
    assumption_report,
    find_sizes,
    input_dimensions,
    runs_at,
)
from widthfold_onnx.runtime.inputs.stored import stored_sizes
from widthfold_onnx.runtime.session import Port, Session, open_session, ports_of

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
BANDS = "g (float[T, B] x) => (float[T, C] y) <float[144, 2] w> { y = MatMul(x, w) }"
IMAGE = [Port("image", "float32", ("N", 3, "H", "W"))]


def model(text: str) -> onnx.ModelProto:
    return build(HEAD + text)


def opened(folder: Path, proto: onnx.ModelProto) -> Session:
    path = folder / "model.onnx"
    onnx.save(proto, path)
    return open_session(path, RuntimeOptions(provider=Provider.CPU))


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("x:1,3,320,640", [(1, 3, 320, 640)]),
        ("x:1,3,320..640,32..48", [(1, 3, 320, 32), (1, 3, 640, 48)]),
        ("x:7..7", [(7,)]),
        ("a:b:1..2", [(1,), (2,)]),
        ("x:", [()]),
    ],
)
def test_a_range_names_its_two_ends(text: str, shapes: list[tuple[int, ...]]) -> None:
    assert parse_shape(text) == (text.rpartition(":")[0], shapes)


@pytest.mark.parametrize("text", ["x:4..2", "x:1..2..3", "x:..3", "x:0..3", "x:1...3", ":1..2"])
def test_a_range_needs_two_ends_in_order(text: str) -> None:
    with pytest.raises(Exception, match="is not of the form NAME:1,3,224,224"):
        parse_shape(text)


def test_shapes_of_several_inputs_are_assigned_in_order() -> None:
    assignments = [("x", [(1,)]), ("y", [(5,)]), ("x", [(2,), (3,)])]
    assert paired_sizes(assignments) == (
        {"x": (1,), "y": (5,)},
        {"x": (2,), "y": (5,)},
        {"x": (3,), "y": (5,)},
    )
    assert paired_sizes([]) == ANY_SIZE
    with pytest.raises(click.BadParameter, match="x 3 times, y 2 times: equally many, or once"):
        paired_sizes([*assignments, ("y", [(6,)])])


def test_one_size_is_the_case_of_one() -> None:
    assert FoldOptions(input_shapes={"x": (1, 2)}).input_shapes == ({"x": (1, 2)},)
    assert VerifyOptions().input_shapes == FoldOptions().input_shapes == ANY_SIZE
    with pytest.raises(UsageError, match="input-shape is 9 sizes; it must name at most 8"):
        FoldOptions(input_shapes=[{"x": (n,)} for n in range(9)])
    with pytest.raises(UsageError, match="input-shape is -1 along an axis; it must be at least 0"):
        FoldOptions(input_shapes={"x": (1, -1)})


@pytest.mark.parametrize("name", ["?", "", "None", "unk__12", "-1"])
def test_anonymous_dimensions_of_one_name_may_differ(name: str, tmp_path: Path) -> None:
    x = helper.make_tensor_value_info("x", 1, [name, 3, name, name])
    y = helper.make_tensor_value_info("y", 1, [None, 3, None, None])
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", [x], [y])
    proto = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    session = opened(tmp_path, proto)
    assert input_dimensions(session.inputs, {"x": (6, 3, 48, 192)}).open_dims == ()
    assert ports_of(proto) == session.inputs == [Port("x", "float32", (None, 3, None, None))]
    assert find_sizes(session, ({"x": (6, 3, 48, 192)},)) == ({"x": (6, 3, 48, 192)},)


def test_an_input_with_a_default_need_not_be_fed_and_has_no_open_size(tmp_path: Path) -> None:
    inputs = "g (float[1,1,H] x, float[K] b) => (float[1,1,H] y)"
    proto = model(f"{inputs} <float[1] b = {{0.5}}> {{ y = Add(x, b) }}")
    session = opened(tmp_path, proto)
    assert ports_of(proto) == session.inputs == [Port("x", "float32", (1, 1, "H"))]


def test_a_small_and_a_large_size_are_found(tmp_path: Path) -> None:
    session = opened(tmp_path, model("g (float[1,1,H,W] x) => (float[1,1,H,W] y) { y = Neg(x) }"))
    assert find_sizes(session, ANY_SIZE) == ({"x": (1, 1, 64, 64)}, {"x": (1, 1, 512, 512)})


def test_a_number_of_bands_is_found_one_dimension_at_a_time(tmp_path: Path) -> None:
    session = opened(tmp_path, model(BANDS))
    assert find_sizes(session, ANY_SIZE) == ({"x": (64, 144)}, {"x": (512, 144)})


def test_a_search_ends_when_its_work_is_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = opened(tmp_path, model(BANDS))
    monkeypatch.setattr(sizes_module, "SEARCH_WORK", 40 * sizes_module.TRY_WORK)
    words = r"^no size of x was found at which the model runs; p"
    with pytest.raises(UnverifiedError, match=words):
        find_sizes(session, ANY_SIZE)


@pytest.mark.parametrize("clock", [0.0, 500.0])
def test_no_clock_chooses_a_size(
    clock: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine on which all runs together take 500 s finds the sizes of one that takes none."""
    session = opened(tmp_path, model("g (float[N, T] x) => (float[N, T] y) { y = Neg(x) }"))
    ticks = iter(range(1, 1000))
    monkeypatch.setattr(sizes_module.time, "monotonic", lambda: clock and min(clock, next(ticks)))
    drawn = random_sets(session, ANY_SIZE, 5, any_shapes)
    assert drawn.compared == ({"x": (1, 4096)}, {"x": (3, 65535)})
    assert [item.feeds["x"].shape[0] for item in drawn.sets] == [1, 3, 2, 7, 1]


@pytest.mark.parametrize("passed_runs", [0, 1, 2, 3, 4])
def test_a_search_that_takes_too_long_is_given_up_and_chooses_nothing(
    passed_runs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = opened(tmp_path, model("g (float[N, T] x) => (float[N, T] y) { y = Neg(x) }"))
    run, times, now = Session.run, [], [0.0]

    def slow(self: Session, *arguments: Any) -> Any:
        times.append(now[0])
        if len(times) > passed_runs:
            now[0] += 601.0
            raise UnverifiedError("model.onnx does not run: it was stopped")
        return run(self, *arguments)

    monkeypatch.setattr(Session, "run", slow)
    monkeypatch.setattr(sizes_module.time, "monotonic", lambda: now[0])
    path = tmp_path / "x.npy"
    np.save(path, np.zeros((2, 5), np.float32))
    options = VerifyOptions(provider=Provider.CPU, inputs=(str(path),))
    words = r"^no size was found at which the model runs within 600 s; pass --input-shape NAME:SIZE"
    with pytest.raises(GivenUpError, match=words):
        input_sets(session, options, any_shapes, any_shapes)


def test_a_search_takes_no_more_memory_than_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiling by 4096 takes 64 MB at the smallest size that is tried first."""
    text = "g (float[N] x) => (float[M] y) <int64[1] r = {4096}> { y = Tile(x, r) }"
    session = opened(tmp_path, parser.parse_model(HEAD + text))
    monkeypatch.setattr(sizes_module, "MEMORY", 1 << 25)
    (smallest, *_) = find_sizes(session, ANY_SIZE)
    assert smallest["x"][0] * 4096 * 4 < 1 << 25


def test_every_size_has_an_input_set(tmp_path: Path) -> None:
    session = opened(tmp_path, model("g (float[N, 3] x) => (float[N, 3] y) { y = Neg(x) }"))
    named = tuple({"x": (n, 3)} for n in (4, 9, 2))
    random_inputs = random_sets(session, named, 1, any_shapes)
    assert (random_inputs.sizes, [s.feeds["x"].shape for s in random_inputs.sets]) == (
        named,
        [(4, 3), (9, 3), (2, 3)],
    )
    assert len(random_sets(session, named, 5, any_shapes).sets) == 5


def test_stored_inputs_name_sizes_and_are_timed_at_theirs(tmp_path: Path) -> None:
    proto = model("g (float[N] x) => (float[N] y) { y = Neg(x) }")
    session = opened(tmp_path, proto)
    paths = []
    for length in (5, 3, 9, 5, 7):
        paths.append(str(tmp_path / f"{len(paths)}.npy"))
        np.save(paths[-1], np.full(length, 2.0, np.float32))
    assert stored_sizes(paths, ports_of(proto)) == ({"x": (5,)}, {"x": (3,)}, {"x": (9,)})
    options = VerifyOptions(provider=Provider.CPU, inputs=tuple(paths), seeds=0)
    at_nine, at_four = (timed_inputs(session, {"x": (n,)}, options) for n in (9, 4))
    assert (at_nine.random, {s["x"].tobytes() for s in at_nine.sets}) == (
        False,
        {np.full(9, 2.0, np.float32).tobytes()},
    )
    assert (at_four.random, {s["x"].shape for s in at_four.sets}) == (True, {(4,)})


def test_only_sizes_at_which_the_model_runs_are_suggested(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model(BANDS), path)
    suggested = ({"x": (1, 256)}, {"x": (8, 144)})
    assert runs_at(path, ({},), suggested) == ({"x": (8, 144)}, {"x": (64, 144)})


def test_sizes_are_sought_with_the_values_of_the_caller(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    body = """m = Constant <value = int64[1] {-1}> ()
        s = Concat <axis = 0> (k, m) a = Reshape (x, s) y = Conv (a, w)"""
    proto = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[1,1,N] x, int64[2] k) => (float[a,b,c] y) <float[4,1,3] w = {{
        {",".join("1" * 12)}}}> {{ {body} }}"""
    )
    onnx.save(proto, path)
    values = {"k": (1.0, 5.0)}  # channels that the Conv does not read
    assert runs_at(path, (values,), ({"x": (1, 1, 64)},)) == ()
    values = {"k": (1.0, 1.0)}
    assert runs_at(path, (values,), ({"x": (1, 1, 80)},))[0] == {"x": (1, 1, 80), "k": (2,)}
    assert wf.inspect(path, value={"k": (1, 5)}).assumed is None
    assert wf.inspect(path, value=values).assumed is not None


def test_what_was_assumed_names_open_dimensions() -> None:
    assumed = assumption_report(IMAGE, ANY_SIZE, ({"image": (1, 3, 64, 32)},))
    assert assumed is not None
    assert (assumed.open, assumed.sizes) == (
        {"image": ["N", "H", "W"]},
        [{"image": [1, 3, 64, 32]}],
    )
    assert assumption_report(IMAGE, ({"image": (1, 3, 8, 8)},), ({"image": (1, 3, 8, 8)},)) is None


def test_a_shape_that_does_not_fit_is_refused_with_the_symbols_of_the_model() -> None:
    proto = model("g (float[N, 3, height] x) => (float[N, 3, height] y) { y = Neg(x) }")
    with pytest.raises(UsageError, match="x is declared N,3,height, not 1,4,8"):
        ShapeTable(proto, {"x": (1, 4, 8)})
