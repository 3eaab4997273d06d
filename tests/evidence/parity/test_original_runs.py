"""Input sets on which the original overflows: made-up sets are left out, stored sets stay."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.evidence.compared import compare_models
from tests.evidence.parity.planted_runs import planted_runs
from tests.folding import optimize
from widthfold_onnx.evidence import exact_kernels
from widthfold_onnx.model.loader import load
from widthfold_onnx.options import FoldOptions, Provider, VerifyOptions
from widthfold_onnx.runtime.inputs.feeds import InputSet
from widthfold_onnx.runtime.provider_traits import Level

OPTIONS = VerifyOptions(provider=Provider.CPU, seeds=3, truth_work=0)
BYTES = "seed 2, integers 0 to 255"
SHAPE = (1, 2, 4, 16)


def model(*, scale=1.0, clip=False):
    """x -> Exp, or Abs and two Mul -> Conv -> (Clip) -> y; exp(89) is more than float32 holds."""
    rng = np.random.default_rng(1)
    constants = {"w": rng.uniform(0.5, 1, (2, 2, 3, 3)), "s": scale, "low": 0, "high": 50}
    before = [helper.make_node("Exp", ["x"], ["e"])]
    if scale != 1.0:
        before = [
            helper.make_node("Abs", ["x"], ["a"]),
            helper.make_node("Mul", ["a", "s"], ["m"]),
            helper.make_node("Mul", ["m", "s"], ["e"]),
        ]
    conv = helper.make_node("Conv", ["e", "w"], ["c"], "conv", pads=[1] * 4)
    last = helper.make_node("Clip", ["c", "low", "high"], ["y"])
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in "xy"]
    graph = helper.make_graph(
        [*before, conv, last if clip else helper.make_node("Identity", ["c"], ["y"])],
        "g",
        ends[:1],
        ends[1:],
        [numpy_helper.from_array(np.array(v, np.float32), n) for n, v in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def folded(folder, proto):
    paths = folder / "a.onnx", folder / "b.onnx"
    onnx.save(proto, paths[0])
    assert optimize(*paths, FoldOptions(factor=4, axis="width"), None).summary.folded == 1
    return paths


@pytest.mark.parametrize("clip", [False, True])
def test_made_up_inputs_on_which_the_original_overflows_are_left_out(tmp_path, clip):
    pair = folded(tmp_path, model(clip=clip))
    result = compare_models(*pair, OPTIONS, is_proved=True)
    assert result.verdict == "pass", result.reasons
    assert result.input_sets == 2
    (reason,) = result.reasons
    assert reason.startswith(
        f"left out {BYTES}: node 'conv' of the original reads NaN or Inf there ("
    )
    assert reason.endswith(f" of {np.prod(SHAPE)} values), which a fold may spread")
    assert all(row.passed and row.nonfinite_match for row in result.outputs)


def test_a_set_that_overflows_only_as_deployed_is_left_out_as_well(tmp_path, monkeypatch):
    pair = folded(tmp_path, model())
    opened = exact_kernels.open_session

    def open_session(path, options, level, **others):
        plain = path == pair[1] and level == Level.DISABLED
        model = pair[0] if plain else path
        return opened(model, options, level, **others)

    monkeypatch.setattr(exact_kernels, "open_session", open_session)
    result = compare_models(*pair, OPTIONS, is_proved=True)
    assert result.verdict == "pass", result.reasons
    assert (result.input_sets, len(result.reasons)) == (2, 1)


def test_inputs_of_the_user_are_never_left_out(tmp_path):
    pair = folded(tmp_path, model())
    stored = tmp_path / "x.npy"
    x = np.zeros(SHAPE, np.float32)
    x[0, 0, 0, 0] = 100.0
    np.save(stored, x)
    options = VerifyOptions(provider=Provider.CPU, seeds=3, truth_work=0, inputs=(str(stored),))
    result = compare_models(*pair, options, is_proved=True)
    assert result.verdict == "fail"
    assert result.reasons[0] == "output y: NaN or Inf at other places (x.npy)"
    x[0, 0, 0, 0] = 1.0
    np.save(stored, x)
    assert compare_models(*pair, options, is_proved=True).verdict == "pass"


def test_of_an_original_that_overflows_on_every_set_the_proof_decides(tmp_path):
    pair = folded(tmp_path, model(scale=1e38))
    result = compare_models(*pair, OPTIONS, is_proved=True)
    assert result.verdict == "pass"
    assert (
        result.reasons[-1] == "the original overflows on every input set: the proof alone decides"
    )
    assert [line.split(":")[0] for line in result.reasons[:-1]] == [
        "left out seed 0, normal",
        "left out seed 1, uniform 0 to 1",
        f"left out {BYTES}",
    ]
    assert (result.input_sets, result.outputs) == (0, ())


def plant(path, change):
    proto = onnx.load(path)
    (tensor,) = (t for t in proto.graph.initializer if t.name == "w/widthfold")
    array = numpy_helper.to_array(tensor).copy()
    change(array)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    onnx.save(proto, path)


def test_a_fault_shows_on_the_sets_that_are_left(tmp_path):
    pair = folded(tmp_path, model())

    def change(array):
        array[array != 0] *= np.float32(1.001)

    plant(pair[1], change)
    result = compare_models(*pair, OPTIONS, is_proved=True)
    assert result.verdict == "fail"
    assert result.reasons[0].endswith("(seed 0, normal)")


def test_a_nan_that_the_original_has_nowhere_is_a_fault(tmp_path):
    pair = folded(tmp_path, model())

    def change(array):
        array.flat[0] = np.nan

    plant(pair[1], change)
    result = compare_models(*pair, OPTIONS, is_proved=True)
    assert result.verdict == "fail"
    assert result.reasons[0] == "output y: NaN or Inf at other places (seed 0, normal)"


def at(pair, *values):
    feeds = [np.zeros(SHAPE, np.float32)] + [np.full(SHAPE, v, np.float32) for v in values]
    sets = [InputSet("s", {"x": x}) for x in feeds]
    original = planted_runs(OPTIONS, sets, load(pair[0]))
    return [original.overflow(number) for number in range(len(sets))]


def test_only_the_sets_that_overflow_are_named(tmp_path):
    pair = folded(tmp_path, model())
    assert [bool(why) for why in at(pair, 1.0, 100.0, 2.0)] == [False, False, True, False]
    assert "reads NaN or Inf there (128 of 128 values)" in at(pair, 100.0)[1]
    # exp(88) fits, and the sum of its multiples does not
    assert "gives NaN or Inf there" in at(pair, 88.0)[1]


def test_without_a_proof_nothing_is_excused(tmp_path):
    result = compare_models(*folded(tmp_path, model()), OPTIONS)
    assert result.verdict == "fail"
    assert result.reasons[0] == f"output y: NaN or Inf at other places ({BYTES})"
