"""An old cuDNN is suspected before a fold is. The GPU's outputs are planted, the CPU's are run."""

import numpy as np
import pytest
from onnx import parser

from tests.evidence.reference import reference
from widthfold_onnx.evidence.parity import cudnn_fault, models
from widthfold_onnx.evidence.parity.cudnn_fault import original_is_off
from widthfold_onnx.evidence.parity.models import compare_models
from widthfold_onnx.options import Provider, VerifyOptions
from widthfold_onnx.runtime.inputs.recorded import InputSet

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
GROUPED = "g (float[1,2,3] x) => (float[1,2,3] y) <float[2,1,1] w = {2, 3}> { y = %s(x, w) }"
X = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
Y = X * np.array([2, 3], np.float32)[:, None]
SETS = [InputSet("counted", {"x": X})]


def stored(folder, name, text):
    path = folder / name
    path.write_bytes(parser.parse_model(HEAD + text).SerializeToString())
    return path


@pytest.fixture
def said(tmp_path, monkeypatch):
    def ask(*computed, version=(9, 14, 0), op="Conv <group = 2>", provider=Provider.CUDA):
        monkeypatch.setattr(cudnn_fault, "cudnn_version", lambda: version)
        model = stored(tmp_path, "a.onnx", GROUPED % op)
        options = VerifyOptions(provider=provider, provider_options={"use_tf32": "1"})
        runs = [[{"y": y}] for y in computed]
        return original_is_off(reference(model, options, SETS), model, runs)

    return ask


@pytest.mark.parametrize("computed", [(Y * 1.5,), (Y, Y * 1.5)])
@pytest.mark.parametrize("version", [(9, 14, 0), (9, 23, 99), ()])
def test_an_original_that_is_off_is_named(said, computed, version):
    (line,) = said(*computed, version=version)
    shown = "9." if version else "of unknown version"
    assert line.startswith(f"the original itself is off on the GPU (cuDNN {shown}")
    assert line.endswith("output y: max_rel 0.5, allowed 1e-05 (counted)")


def test_an_original_that_is_right_is_said_to_be(said):
    right = "the original is right on the GPU (cuDNN 9.14.0): it agrees with the CPU"
    assert said(Y, Y * (1 + 1e-6)) == [right]


@pytest.mark.parametrize(
    "case",
    [
        {"version": (9, 24, 0)},
        {"version": (10, 0, 0)},
        {"provider": Provider.CPU},
        {"op": "Mul"},
    ],
)
def test_nothing_is_said_where_that_fault_cannot_be(said, case):
    assert said(Y * 1.5, **case) == []


def test_a_cpu_that_does_not_run_the_original_is_said(said):
    (line,) = said(Y, op="Conv <group = 2, dilations = [1, 1, 1]>")
    assert line.startswith(
        "cuDNN 9.14.0 may be at fault (before 9.24); the CPU cannot tell: a.onnx"
    )


def test_only_a_difference_is_looked_into(tmp_path, monkeypatch):
    asked = []

    def ask(reference, rewritten, computed):
        asked.append((len(reference.sets), [len(outputs) for outputs in computed]))
        return ["what the CPU says"]

    monkeypatch.setattr(models, "original_is_off", ask)
    text = GROUPED % "Conv <group = 2>"
    first, other = (stored(tmp_path, f"{n}.onnx", text.replace("3}", f"{n}}}")) for n in (3, 4))
    options = VerifyOptions(provider=Provider.CPU, seeds=2, truth_budget=0)
    assert compare_models(first, first, options).verdict == "pass"
    assert asked == []
    result = compare_models(first, other, options)
    assert (result.verdict, result.reasons[-1]) == ("fail", "what the CPU says")
    assert asked == [(2, [2, 2])]
