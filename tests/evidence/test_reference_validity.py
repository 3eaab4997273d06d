import numpy as np
import pytest
from onnx import parser

from widthfold_onnx.evidence.parity import models
from widthfold_onnx.evidence.parity.comparison import NOISE_FACTOR
from widthfold_onnx.evidence.parity.models import compare_models
from widthfold_onnx.evidence.parity.reference_validity import usable
from widthfold_onnx.options import Provider, VerifyOptions

REFERENCE = np.array([1.0, -2.0, 4.0], np.float32)


def asked():
    raise AssertionError("nobody needs the noise")


def test_a_truth_near_the_original_may_judge():
    near = REFERENCE.astype(float) * (1 + 9e-6)
    kept, why = usable([{"y": near}], [{"y": REFERENCE}], asked)
    assert why == ""
    assert kept == [{"y": near}]


@pytest.mark.parametrize(
    ("distance", "noise", "used"),
    [
        (1e-4, None, False),
        (1e-4, 1e-6, False),
        (1e-4, 1.1e-4 / NOISE_FACTOR, True),
        (0.29, 1.0, True),
        (0.31, 1.0, False),
    ],
)
def test_a_truth_further_away_needs_rounding_to_explain_it(distance, noise, used):
    wide = REFERENCE.astype(float)
    wide[0] += 4 * distance
    kept, why = usable([{}, {"y": wide}], [{}, {"y": REFERENCE}], lambda: [{}, {"y": noise}])
    assert list(kept[1]) == (["y"] if used else [])
    assert bool(why) is not used
    if why:
        assert f"output y: the original is {distance:.3g} away from it" in why


def test_the_sentence_names_every_output_and_the_largest_distance():
    far = {"a": REFERENCE * 1.5, "b": REFERENCE * 1.0, "c": REFERENCE * 1.25}
    wide = {name: value.astype(float) for name, value in far.items()}
    kept, why = usable([wide], [dict.fromkeys("abc", REFERENCE)], lambda: [{}])
    assert list(kept[0]) == ["b"]
    assert "not used for output a, c: the original is 0.333 away" in why


def test_the_largest_distance_of_any_set_is_named():
    wide = [{"y": REFERENCE.astype(float) * factor} for factor in (2.0, 1.25)]
    kept, why = usable(wide, [{"y": REFERENCE}] * 2, lambda: [{}, {}])
    assert kept == [{}, {}]
    assert "the original is 0.5 away" in why


def test_a_truth_of_another_shape_is_no_truth():
    kept, why = usable([{"y": np.ones(4)}], [{"y": REFERENCE}], asked)
    assert kept == [{}]
    assert "an unknown amount away" in why


def test_only_floats_of_a_known_rounding_are_judged():
    kept, why = usable([{"i": np.ones(3)}], [{"i": np.ones(3, np.int64)}], asked)
    assert (kept, why) == ([{}], "")


def pair(folder, *weights):
    head = '<ir_version: 8, opset_import: ["" : 17]>\n'
    text = "g (float[N, 4] x) => (float[N, 4] y) <float w = {%s}> { y = Mul(x, w) }"
    paths = [folder / f"{i}.onnx" for i in range(len(weights))]
    for path, weight in zip(paths, weights, strict=True):
        path.write_bytes(parser.parse_model(head + text % weight).SerializeToString())
    return paths


@pytest.mark.parametrize(("broken", "verdict"), [(False, "fail"), (True, "pass")])
def test_a_broken_reference_calls_no_model_wrong(tmp_path, monkeypatch, broken, verdict):
    true_outputs = models.true_outputs

    def reference(*arguments):
        runs, why = true_outputs(*arguments)
        return [{"y": run["y"] * (1.2 if broken else 1.0)} for run in runs], why

    monkeypatch.setattr(models, "true_outputs", reference)
    options = VerifyOptions(provider=Provider.CPU, seeds=2, truth_budget=20)
    result = compare_models(*pair(tmp_path, "2", "2.000014"), options)
    assert result.verdict == verdict
    unused = [line for line in result.reasons if line.startswith("float64 reference not used")]
    assert len(unused) == broken
    assert [row.truth_original for row in result.outputs] == [None if broken else 0.0] * 2
    assert models.compare_models(*pair(tmp_path, "2", "2.1"), options).verdict == "fail"
