"""Inputs that take turns: random ones beyond the caches, else the stored ones."""

import numpy as np
import pytest

from tests.evidence.timing.machine import Machine, Session, costs
from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.options import Provider, VerifyOptions
from widthfold_onnx.runtime.inputs import input_sets
from widthfold_onnx.runtime.inputs.feeds import Distribution
from widthfold_onnx.runtime.session import Port


@pytest.mark.parametrize(
    ("cache", "count"), [(0, 4), (4 * 1024, 5), (10 * 1024 - 1, 10), (1 << 30, 64)]
)
def test_the_input_sets_together_exceed_the_last_cache(monkeypatch, cache, count):
    monkeypatch.setattr(input_sets, "last_cache_bytes", lambda: cache)
    sets = input_sets._random(Session(Machine({}), 0, "", ""), {"x": (1, 256)}, Distribution.NORMAL)
    assert len(sets) == count
    size = sum(array.nbytes for item in sets for array in item.values())
    assert size > cache or count == input_sets.INPUT_SETS[1]
    assert all(np.count_nonzero(item["x"]) == 256 for item in sets)
    assert len({item["x"].tobytes() for item in sets}) == count


@pytest.mark.parametrize(("elements", "drawn"), [(0, 4), (5 * 256, 5), (1 << 20, 64)])
def test_large_sets_are_copies_in_other_memory(monkeypatch, elements, drawn):
    monkeypatch.setattr(input_sets, "DRAWN_ELEMENTS", elements)
    monkeypatch.setattr(input_sets, "last_cache_bytes", lambda: 1 << 30)
    sets = input_sets._random(Session(Machine({}), 0, "", ""), {"x": (1, 256)}, Distribution.NORMAL)
    assert len({item["x"].tobytes() for item in sets}) == drawn
    assert len({item["x"].ctypes.data for item in sets}) == len(sets) == 64


def test_on_a_gpu_they_exceed_its_own_cache(monkeypatch):
    monkeypatch.setattr(input_sets, "last_cache_bytes", lambda: 0)
    session = Session(Machine({}), 0, "", "")
    session.provider = Provider.CUDA
    session.inputs = (Port("x", "float32", (1, 4 << 20)),)
    sets = input_sets._random(session, {"x": (1, 4 << 20)}, Distribution.NORMAL)
    assert len(sets) == 5  # of 16 MiB: more than the 60 MB of an H200


def test_all_sides_take_the_input_sets_in_turn(measured):
    _, machine = measured(costs(10, 90, 8, 90), time_budget=100)
    timed = machine.runs[-32:]
    rounds = [timed[i : i + 8] for i in range(0, 32, 8)]  # four sessions of each model
    assert all(len({value for _, value in entry}) == 1 for entry in rounds)
    assert len({entry[0][1] for entry in rounds}) == input_sets.INPUT_SETS[0]


def test_without_random_inputs_the_stored_ones_are_timed(measured, tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.full((1, 256), 7, np.float32))
    timing, machine = measured(costs(10, 90, 8, 90), seeds=0, inputs=(str(path),))
    assert {value for _, value in machine.runs} == {7.0}
    assert (timing.note, timing.shapes) == ("timed on the stored inputs", {"x": [1, 256]})


def test_stored_inputs_are_timed_where_no_random_ones_run(measured, monkeypatch, tmp_path):
    def stops(*arguments):
        raise UnverifiedError("no random input was found that runs")

    monkeypatch.setattr(input_sets, "random_feeds", stops)
    with pytest.raises(UnverifiedError, match="no random input"):
        measured(costs(10, 90, 8, 90))
    np.save(tmp_path / "x.npy", np.full((1, 256), 7, np.float32))
    timing, _ = measured(costs(10, 90, 8, 90), inputs=(str(tmp_path / "x.npy"),))
    assert timing.note == "timed on the stored inputs"


def test_random_inputs_are_preferred_and_their_shapes_are_kept(measured, tmp_path):
    np.save(tmp_path / "x.npy", np.full((1, 256), 7, np.float32))
    timing, machine = measured(costs(10, 90, 8, 90), inputs=(str(tmp_path / "x.npy"),))
    assert 7.0 not in {value for _, value in machine.runs}
    assert (timing.note, timing.shapes) == ("", {"x": [1, 256]})


def test_stored_sets_of_other_shapes_take_no_turn(monkeypatch, tmp_path):
    class Open(Session):
        inputs = (Port("x", "float32", (1, "n")),)

    monkeypatch.setattr(input_sets, "last_cache_bytes", lambda: 0)
    paths = []
    for number, size in enumerate((4, 8, 4)):
        paths.append(str(tmp_path / f"{number}.npy"))
        np.save(paths[-1], np.full((1, size), number, np.float32))
    sets = input_sets._stored(
        Open(Machine({}), 0, "", ""), VerifyOptions(inputs=tuple(paths)), None
    )
    assert [item["x"].tolist() for item in sets] == [[[0.0] * 4], [[2.0] * 4]] * 2
    assert len({item["x"].ctypes.data for item in sets}) == 4  # one buffer would stay in the cache
    many = VerifyOptions(inputs=(paths[0], paths[2]) * 3)
    assert len(input_sets._stored(Open(Machine({}), 0, "", ""), many, None)) == 6, "no copies"
