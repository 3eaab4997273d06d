"""Outputs of two whole models, compared at both levels of the runtime."""

import math

import numpy as np
import pytest
from onnx import numpy_helper, parser

from tests.evidence.compared import LINE, OPTIONS, SCALED, compare_models, compared, stored
from widthfold_onnx.errors import UnverifiedError, UsageError
from widthfold_onnx.evidence import exact_kernels
from widthfold_onnx.evidence.parity.outputs import (
    BEYOND_NOTE,
    MULTIPLE_IF_PROVED,
    MULTIPLE_IF_UNPROVED,
)
from widthfold_onnx.options import Provider, Tolerance, VerifyOptions
from widthfold_onnx.runtime.child import isolated
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.runtime.session import Session, open_session

TRUTHFUL = VerifyOptions(provider=Provider.CPU, seeds=3, truth_work=100)


def test_equal_models_pass_at_both_levels(tmp_path):
    double = LINE + " { z = Add(x, x)\n y = Identity(z) }"
    result = compared(tmp_path, SCALED % "2", double)
    assert (result.verdict, result.reasons) == ("pass", ())
    assert [(row.name, row.level, row.max_abs) for row in result.outputs] == [
        ("y", "disabled", 0.0),
        ("y", "all", 0.0),
    ]
    assert (result.input_sets, result.provider) == (3, "cpu")
    assert result.sizes == ({"x": (1, 4)}, {"x": (8, 4)})


def test_a_difference_fails_with_its_figure(tmp_path):
    result = compared(tmp_path, SCALED % "2", SCALED % "2.002")
    assert result.verdict == "fail"
    assert result.reasons == ("output y: max_rel 0.001, allowed 1e-05 (seed 0, normal)",)
    loose = VerifyOptions(provider=Provider.CPU, tolerance=Tolerance(per_output={"y": 0.01}))
    assert compared(tmp_path, SCALED % "2", SCALED % "2.002", loose).verdict == "pass"


def test_a_difference_from_zeros_is_named_and_is_no_meaningless_check(tmp_path):
    zeros = LINE + " <float one = {1}> { s = Sign(x)\n a = Abs(s)\n y = Sub(a, a) }"
    ones = zeros.replace("Sub(a, a)", "Mul(a, one)")
    result = compared(tmp_path, zeros, ones)
    assert (result.verdict, {row.caveat for row in result.outputs}) == ("fail", {""})
    assert result.reasons == ("output y: at [0,0]: 0 became 1 (seed 0, normal)",)


def test_a_size_that_was_baked_in_is_found(tmp_path):
    free = "g (float[N, L] x) => (float[N, L] y) <int64[2] s = {%s}> { y = Reshape(x, s) }"
    result = compared(tmp_path, free % "0, -1", free % "-1, 64")
    assert result.verdict == "fail"


def test_a_rewritten_model_that_does_not_load_fails(tmp_path):
    kernelless = LINE + " { h = Cast<to = 16>(x)\n n = Neg(h)\n y = Cast<to = 1>(n) }"
    result = compared(tmp_path, LINE + " { y = Neg(x) }", kernelless)
    assert result.verdict == "fail"
    assert (
        "the original runs, the rewritten model does not: b.onnx does not load"
        in (result.reasons[0])
    )


def test_an_original_that_does_not_run_is_unverified(tmp_path):
    broken = LINE + " <int64[1] s = {999983}> { y = Reshape(x, s) }"
    result = compared(tmp_path, broken, broken)
    assert result.verdict == "unverified"
    assert "--inputs" in result.reasons[0]
    with pytest.raises(UsageError, match="No such file"):
        compare_models(tmp_path / "none.onnx", tmp_path / "none.onnx", OPTIONS)


def test_a_random_output_cannot_be_judged(tmp_path):
    text = (
        "g (float[N, 4] x) => (float[N, 4] y, float[N, 4] r)"
        " { y = Mul(x, %s)\n u = RandomUniformLike(x)\n r = Add(x, u) }"
    )
    text = text.replace("%s", "x")
    result = compared(tmp_path, text, text)
    assert result.verdict == "unverified"
    assert result.reasons == (
        "output r cannot be judged: the original itself gives other values when it runs again",
    )
    assert {row.name: row.passed for row in result.outputs} == {"y": True, "r": False}


def test_outputs_that_show_nothing_are_not_a_pass(tmp_path):
    constant = LINE + " { z = Sub(x, x)\n y = Identity(z) }"
    result = compared(tmp_path, constant, constant)
    assert result.verdict == "unverified"
    assert "no output shows anything" in result.reasons[0]
    proved = compared(tmp_path, constant, constant, is_proved=True)
    assert proved.verdict == "pass"
    assert proved.reasons == ("no output shows anything on these inputs: the proof alone decides",)


MASKED = (
    "g (float[N, 4] x, float[1] {}, float[1] {}) => (float[N, 4] y)"
    " <float nan = {0}, float w = {%s}> { s = Mul(x, w)\n a = Abs(s)\n p = Less(low, a)\n"
    " q = Less(a, high)\n b = And(p, q)\n z = Sub(nan, nan)\n n = Div(z, z)\n"
    " y = Where(b, a, n) }"
)


@pytest.mark.parametrize("names", [("low", "high"), ("high", "low")])
def test_limits_are_drawn_so_that_something_shows(tmp_path, names):
    hidden = MASKED.replace("[1] {}", "[1] %s") % (*names, "%s")
    result = compared(tmp_path, hidden % "1000", hidden % "1000")
    assert result.verdict == "pass"
    (reason,) = result.reasons
    assert reason.startswith(f"random values of small inputs show nothing; they are {names[0]} ")
    assert compared(tmp_path, hidden % "1000", hidden % "1001").verdict == "fail"


def test_a_nan_that_spreads_fails(tmp_path):
    result = compared(
        tmp_path,
        LINE + " { y = Sqrt(x) }",
        LINE
        + " { r = Sqrt(x)\n s = ReduceSum <keepdims = 1> (r)\n o = Sub(s, s)\n y = Add(r, o) }",
    )
    assert result.verdict == "fail"
    assert "NaN or Inf at other places" in result.reasons[0]


def test_sequences_are_compared_element_by_element(tmp_path):
    text = "g (float[N, 4] x) => (seq(float[N, 4]) y) { z = Neg(x)\n y = SequenceConstruct(x, %s) }"
    assert [row.name for row in compared(tmp_path, text % "z", text % "z").outputs] == [
        "y[0]",
        "y[1]",
        "y[0]",
        "y[1]",
    ]
    assert compared(tmp_path, text % "z", text % "x").verdict == "fail"
    assert compared(tmp_path, text % "z", text % "z, z").verdict == "fail"


def test_it_is_said_that_models_do_not_run_as_deployed(tmp_path, monkeypatch):
    """The runtime refuses some right models at its own level, such as QDQ layers of some forms."""
    opened = exact_kernels.open_session
    fails: set[str] = set()

    def open_at(model, options, level, **arguments):
        if level is Level.ALL and model.name in fails:
            raise UnverifiedError(f"{model.name} does not load: a fault of an optimizer")
        return opened(model, options, level, **arguments)

    monkeypatch.setattr(exact_kernels, "open_session", open_at)
    fails.update(["a.onnx", "b.onnx"])
    result = compared(tmp_path, SCALED % "2", SCALED % "2")
    assert result.verdict == "pass"
    assert result.reasons == (
        "not compared as deployed, as neither model runs with the runtime's own optimizations: "
        "a.onnx does not load: a fault of an optimizer",
    )
    fails.remove("a.onnx")
    result = compared(tmp_path, SCALED % "2", SCALED % "2")
    assert result.verdict == "fail"


class WrongSession(Session):
    def run(self, feeds, seconds=math.inf):
        return {"y": super().run(feeds, seconds)["y"] * np.float32(1.5)}


class StoppingSession(Session):
    def run(self, feeds, seconds=math.inf):
        raise UnverifiedError("it stops")


@pytest.fixture
def compared_after_faults(tmp_path, monkeypatch):
    """Compare a.onnx with b.onnx; the named models have another kind of session at level ALL."""
    paths = [stored(tmp_path, name, SCALED % "2") for name in ("a.onnx", "b.onnx")]

    def compare(session_type, *names):
        def opened(model, runtime_options, level, **options):
            session = open_session(model, runtime_options, level, **options)
            if level == "all" and getattr(model, "name", "") in names:
                return session_type(**vars(session))
            return session

        monkeypatch.setattr(exact_kernels, "open_session", opened)
        return compare_models(*paths, OPTIONS)

    return compare


def test_a_fault_of_the_runtimes_own_optimizations_is_told_apart(compared_after_faults):
    result = compared_after_faults(WrongSession, "b.onnx")
    assert result.verdict == "fail"
    assert result.reasons[0].startswith("only with the runtime's own optimizations: output y: ")
    assert [row.passed for row in result.outputs] == [True, False]

    result = compared_after_faults(WrongSession, "a.onnx")
    assert (result.verdict, result.outputs[1].note) == ("pass", "")

    result = compared_after_faults(WrongSession, "a.onnx", "b.onnx")
    assert (result.verdict, result.outputs[1].max_abs) == ("pass", 0)
    assert "the runtime's optimizations change the original" in result.outputs[1].note


def test_a_model_that_stops_only_if_optimized_fails_unless_the_original_does(compared_after_faults):
    result = compared_after_faults(StoppingSession, "b.onnx")
    assert result.verdict == "fail"
    assert result.reasons[0].startswith("only with the runtime's own optimizations: ")
    assert "it stops" in result.reasons[0]
    assert [row.level for row in result.outputs] == ["disabled"]
    assert compared_after_faults(StoppingSession, "a.onnx", "b.onnx").verdict == "pass"


def test_an_ill_conditioned_output_passes_and_says_so(tmp_path):
    waves = "g (float[N, 64] x) => (float[N, 64] y) <float w = {%s}, float v = {%s}>"
    waves += " { a = Mul(x, w)\n b = Mul(a, v)\n y = Sin(b) }"
    same = waves % (3e4, 1), waves % (300, 100)
    result = compared(tmp_path, *same, is_proved=True)
    assert result.verdict == "pass"
    row = result.outputs[0]
    assert 1e-4 < row.max_rel <= row.tolerance == MULTIPLE_IF_PROVED * row.movement
    assert (row.caveat, row.note) == ("ill-conditioned", BEYOND_NOTE)
    unproved = compared(tmp_path, *same).outputs[0]
    assert unproved.tolerance == pytest.approx(MULTIPLE_IF_UNPROVED * unproved.movement)
    strict = VerifyOptions(provider=Provider.CPU, seeds=3, tolerance=Tolerance(rtol=1e-4))
    assert compared(tmp_path, *same, strict, is_proved=True).verdict == "fail"
    assert compared(tmp_path, *same, strict, is_proved=True).outputs[0].tolerance == 1e-4
    wrong = waves % (3e4, 1), waves % (3e4, 1.01)
    assert compared(tmp_path, *wrong, is_proved=True).verdict == "fail"


def test_one_ill_conditioned_set_does_not_excuse_another(tmp_path):
    # One rounding of 255 moves sin(30 x) by 4e-4; the fault of 1e-3 is at values below 1 only.
    wave = (
        "g (float[1, 64] x) => (float[1, 64] y) <float w = {30}, float one = {1}, float e = {%s}>"
    )
    wave += " { a = Mul(x, w)\n s = Sin(a)\n l = Less(x, one)\n c = Cast<to = 1>(l)\n"
    wave += " d = Mul(c, e)\n y = Add(s, d) }"
    result = compared(tmp_path, wave % "0", wave % "0.001", is_proved=True)
    assert result.verdict == "fail"
    assert result.reasons[0] == "output y: max_rel 0.001, allowed 3.76e-05 (seed 0, normal)"


WEIGHTS = np.sin(np.arange(1, 19)).astype(np.float32)
CONV = "g (float[N, 2, 40] x) => (float[N, 3, 38] y) <float[3, 2, 3] w = {%s}> { y = Conv(x, w) }"


def conv(weights):
    return CONV.replace("%s", ", ".join(f"{value:.9g}" for value in weights))


def test_a_weight_that_went_through_half_precision_is_further_off_than_rounding(tmp_path):
    pair = conv(WEIGHTS), conv(WEIGHTS.astype(np.float16))
    result = compared(tmp_path, *pair, TRUTHFUL, is_proved=True)
    assert result.verdict == "fail"
    row = result.outputs[0]
    assert 0 < row.movement < 4e-7
    assert row.max_rel > 100 * row.movement


def test_the_reference_is_the_truth_where_it_is_known(tmp_path):
    result = compared(tmp_path, conv(WEIGHTS), conv(WEIGHTS), TRUTHFUL)
    assert result.verdict == "pass"
    assert all(0 < row.max_rel < 3e-7 for row in result.outputs)
    assert all(row.max_rel < 3 * row.movement for row in result.outputs)
    result = compared(tmp_path, conv(WEIGHTS), conv(WEIGHTS))
    assert result.outputs[0].max_rel == 0


def test_without_a_truth_nothing_is_claimed(tmp_path):
    stamp = LINE + " { a = Mul(x, x)\n y = com.microsoft.Gelu(a) }"
    imports = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>\n'
    path = tmp_path / "a.onnx"
    path.write_bytes(parser.parse_model(imports + stamp).SerializeToString())
    result = compare_models(path, path, TRUTHFUL)
    assert result.verdict == "pass"
    (reason,) = result.reasons
    assert reason.startswith("no float64 truth: ")
    assert "Gelu" in reason


def test_a_made_up_set_on_which_the_original_stops_is_left_out_and_said(tmp_path):
    # The largest input becomes an index, and integers up to 255 are too large for it.
    text = (
        "g (float[1, 64] x) => (float[1, 64] y) <float[3] t = {1, 2, 3}> {"
        " m = ReduceMax<keepdims = 0>(x)\n i = Cast<to = 7>(m)\n z = Constant<value_int = 0>()\n"
        " j = Max(i, z)\n v = Gather(t, j)\n y = Mul(x, v) }"
    )
    result = compared(tmp_path, text, text)
    assert result.verdict == "pass"
    assert result.input_sets == 2
    assert result.reasons[0].startswith("left out seed 2, integers 0 to 255: ")


def test_all_distributions_and_batches_are_compared(tmp_path):
    path = stored(tmp_path, "a.onnx", "g (float[N, 4] x) => (float[N, 4] y) { y = Neg(x) }")
    steps = []
    options = VerifyOptions(provider=Provider.CPU, truth_work=0)
    assert compare_models(path, path, options, send=steps.append).verdict == "pass"
    assert [step.text.removeprefix("original: ") for step in steps[:5]] == [
        "seed 0, normal",
        "seed 1, uniform 0 to 1",
        "seed 2, integers 0 to 255, batch 2",
        "seed 3, nearly constant, batch 7",
        "seed 4, many decades",
    ]


@pytest.mark.parametrize(("batch", "label"), [(1, "normal"), (2, "0 to 1"), (7, "batch 7")])
def test_a_fault_at_one_batch_only_is_found(tmp_path, batch, label):
    free = "g (float[N, 3, 8] x) => (float[N, 3, 8] y) <int64[3] s = {%s}> { y = Reshape(x, s) }"
    scaled = (
        f"g (float[N, 3, 8] x) => (float[N, 3, 8] y) <int64 bad = {{{batch}}}, int64 zero = {{0}}, "
        "float three = {3}, float one = {1}> { s = Shape(x)\n n = Gather(s, zero)\n"
        " e = Equal(n, bad)\n f = Where(e, three, one)\n y = Mul(x, f) }"
    )
    result = compared(
        tmp_path, free % "0, 3, 8", scaled, VerifyOptions(provider=Provider.CPU, truth_work=0)
    )
    assert result.verdict == "fail"
    assert result.reasons[0].endswith(f"{label})")


def stored_set(folder, x, y):
    folder.mkdir(parents=True)
    for name, array in (("input_0", x), ("output_0", y)):
        data = numpy_helper.from_array(np.array(array, np.float32)).SerializeToString()
        (folder / f"{name}.pb").write_bytes(data)
    return VerifyOptions(provider=Provider.CPU, seeds=0, inputs=(str(folder),))


def test_stored_outputs_bind_the_rewritten_model(tmp_path):
    options = stored_set(tmp_path / "set", [[1, 2, 3, 4]], [[2, 4, 6, 8]])
    result = compared(tmp_path, SCALED % "2", SCALED % "2", options)
    assert (result.verdict, result.input_sets, result.sizes) == ("pass", 1, ())
    loose = VerifyOptions(
        provider=Provider.CPU, seeds=0, inputs=options.inputs, tolerance=Tolerance(rtol=1e-3)
    )
    assert compared(tmp_path, SCALED % "2", SCALED % "2.001", loose).verdict == "pass"
    # Within the tolerance of the original, yet twice as far from the truth as it and too far.
    result = compared(tmp_path, SCALED % "2.0015", SCALED % "2.0034", loose)
    assert result.verdict == "fail"
    assert result.reasons[0].startswith("set: stored output y: max_rel 0.0017")


def test_every_stored_set_of_a_folder_is_compared(tmp_path):
    step = (
        "g (float[N, 4] x) => (float[N, 4] y) <float five = {5}, float w = {%s}> {"
        " b = Greater(x, five)\n c = Cast<to = 1>(b)\n d = Mul(c, w)\n y = Add(x, d) }"
    )
    for number, value in enumerate((1.0, 2.0, 9.0)):
        x = [[value, 2, 3, 4]]
        stored_set(tmp_path / "sets" / f"test_data_set_{number}", x, x)
    options = VerifyOptions(
        provider=Provider.CPU, seeds=0, truth_work=0, inputs=(str(tmp_path / "sets"),)
    )
    assert compared(tmp_path, step % "0", step % "0", options).input_sets == 3
    result = compared(tmp_path, step % "0", step % "1", options)
    assert result.verdict == "fail"
    assert result.reasons[0].endswith("(test_data_set_2)")
    assert any(r.startswith("test_data_set_2: stored output y") for r in result.reasons)


def test_the_witness_is_the_set_on_which_an_output_differs_most(tmp_path):
    """A Clip shows only where numbers are larger, most at 9."""
    clipped = LINE + " <float low = {-inf}, float high = {5}> { y = Clip(x, low, high) }"
    for number, value in enumerate((1.0, 9.0, 7.0)):
        x = [[value, 2, 3, 4]]
        stored_set(tmp_path / "sets" / f"test_data_set_{number}", x, x)
    options = VerifyOptions(
        provider=Provider.CPU, seeds=0, truth_work=0, inputs=(str(tmp_path / "sets"),)
    )
    witness = compared(tmp_path, SCALED % "1", clipped, options).parity.witness
    assert (witness.input_set, witness.shapes) == ("test_data_set_1", {"x": [1, 4]})
    assert (witness.output.name, witness.output.level) == ("y", "disabled")
    assert (witness.output.max_abs, witness.output.max_rel) == (4.0, 4 / 9)
    assert compared(tmp_path, clipped, clipped, options).parity.witness is None


def test_stored_inputs_that_do_not_fit_are_a_usage_error(tmp_path):
    options = stored_set(tmp_path / "set", [[1, 2, 3]], [[2, 4, 6]])
    with pytest.raises(UsageError, match="size 3 on axis 1; the model takes 4"):
        compared(tmp_path, SCALED % "2", SCALED % "2", options)


def test_progress_is_told(tmp_path):
    path = stored(tmp_path, "a.onnx", SCALED % "2")
    steps = []
    compare_models(path, path, OPTIONS, send=steps.append)
    assert steps[0].text == "original: seed 0, normal"
    assert len(steps) == 4 * OPTIONS.seeds + 1


def test_it_runs_in_a_child(tmp_path):
    path = stored(tmp_path, "a.onnx", SCALED % "2")
    steps = []
    result = isolated(compare_models, path, path, OPTIONS, on_message=steps.append, timeout=60)
    assert result.verdict == "pass"
    assert steps
