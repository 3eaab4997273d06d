"""Sites that `optimize` folds, their forms, and the report of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime  # noqa: TID251 - the tests judge by the runtime itself
import pytest
from onnx import numpy_helper

from tests.cli.tool import FAST, names, optimize_report, snapshot, widthfold
from tests.small_models import MODELS, build, save


def statuses(path: Path, *options: object) -> dict[str, str]:
    report = path.with_name("plan.json")
    run = widthfold("optimize", path, *options, "--report", report)
    assert (run.code, run.err) == (0, "")
    return {site["node"]: site["code"] for site in optimize_report(report)["sites"]}


def test_globs_choose_sites(model: Path) -> None:
    folded, unselected = "folded", "not-selected"
    assert statuses(model, "--factor", 8) == {"first": folded, "second": folded}
    assert statuses(model, "--factor", 8, "--nodes", "f*") == {
        "first": folded,
        "second": unselected,
    }
    assert statuses(model, "--factor", 8, "--skip", "?irst") == {
        "first": unselected,
        "second": folded,
    }
    both = ("--nodes", "*", "--skip", "second")
    assert statuses(model, "--factor", 8, *both) == {"first": folded, "second": unselected}


@pytest.mark.parametrize("option", ["--nodes", "--skip"])
@pytest.mark.parametrize("pattern", ["third", "FIRST", "fir", "", "relu"])
def test_a_glob_that_matches_no_node_is_exit_2(
    model: Path, out: Path, option: str, pattern: str
) -> None:
    run = widthfold("optimize", model, out, "--factor", 8, option, "first", option, pattern)
    assert run.code == 2
    assert f"no layer is named '{pattern}'" in run.line
    assert not out.exists()


@pytest.mark.parametrize(
    ("name", "index", "folded"),
    [("batch", 0, "batch"), ("height", 2, "height"), ("width", 3, "width")],
)
def test_axes_by_name_and_by_index(tmp_path: Path, name: str, index: int, folded: str) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[4,1,8,16] x) => (float[4,1,8,16] y) <float[1,1,3,3] w>
    { [conv] y = Conv <pads = [1,1,1,1]> (x, w) }"""
    path = save(build(text), tmp_path / "model.onnx")
    outputs = []
    for axis in (name, index):
        out, report = tmp_path / f"{axis}.onnx", tmp_path / f"{axis}.json"
        run = widthfold(
            *("optimize", path, out, "--factor", 4, "--axis", axis, "--report", report, *FAST)
        )
        assert run.code == 0
        (site,) = optimize_report(report)["sites"]
        assert (site["status"], site["axis"], site["factor"]) == ("folded", folded, 4)
        outputs.append(out.read_bytes())
    assert outputs[0] == outputs[1]


def test_an_axis_that_a_conv_does_not_have_is_a_refusal(model: Path) -> None:
    assert set(statuses(model, "--factor", 8, "--axis", "depth").values()) == {"no-such-axis"}
    assert set(statuses(model, "--factor", 8, "--axis", "4").values()) == {"no-such-axis"}


OPEN = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[n,1,h,w] x) => (float[n,1,h,w] y) <float[1,1,3,3] k>
{ [conv] y = Conv <pads = [1,1,1,1]> (x, k) }"""


@pytest.mark.parametrize("shape", [(), ("--input-shape", "x:1,1,8,64")])
def test_open_sizes_are_folded_and_leave_the_interface(shape: tuple, tmp_path: Path) -> None:
    path = save(build(OPEN), tmp_path / "model.onnx")
    out = tmp_path / "out.onnx"
    assert statuses(path, "--factor", 8, *shape) == {"conv": "folded"}
    assert widthfold("optimize", path, out, "--factor", 8, *shape, *FAST).code == 0
    before, after = onnx.load(path).graph, onnx.load(out).graph
    assert list(before.input) == list(after.input)
    assert list(before.output) == list(after.output)
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    original = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for n, h, w in [(1, 8, 64), (3, 8, 64), (1, 5, 64), (1, 8, 63), (8, 5, 7), (1, 1, 1)]:
        x = np.random.default_rng(n).standard_normal((n, 1, h, w)).astype(np.float32)
        (result,) = session.run(None, {"x": x})
        (expected,) = original.run(None, {"x": x})
        assert result.shape == expected.shape
        assert np.abs(result - expected).max() <= 1e-5 * np.abs(expected).max()


def test_absurd_input_shapes_are_no_fault_of_ours(tmp_path: Path) -> None:
    path = save(build(OPEN), tmp_path / "model.onnx")
    for extent in (1 << 36, 1 << 40):
        shape = f"x:8,1,8,{extent}"
        run = widthfold(
            "optimize", path, tmp_path / "o.onnx", "--factor", 8, "--input-shape", shape
        )
        assert run.code in (2, 4), run
        assert run.line
        assert not (tmp_path / "o.onnx").exists()


def test_the_report_says_what_the_issue_promises(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    out = tmp_path / "out.onnx"
    run = widthfold(
        *("optimize", MODELS / "refusals.onnx", out, "--factor", 8, *FAST, "--report", report)
    )
    assert run.code == 0
    document = optimize_report(report)
    assert document["schema"] == "widthfold.optimize/11"
    assert document["model"] == "refusals.onnx"
    for site in document["sites"]:
        assert site.keys() >= {
            *("node", "op", "status", "axis", "factor", "form", "code", "reason", "flops_ratio")
        }
        folded = site["status"] == "folded"
        assert folded == all(site[k] is not None for k in ("axis", "factor", "form", "flops_ratio"))
        assert site["code"]
        assert site["reason"]
    counts = document["summary"]
    assert sum(counts[k] for k in ("folded", "kept", "refused")) == len(document["sites"])
    assert counts["bytes_before"] == (MODELS / "refusals.onnx").stat().st_size
    assert counts["bytes_after"] == out.stat().st_size
    assert str(tmp_path) not in report.read_text()


def test_external_data_stays_external_and_confined(tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    target.mkdir()
    proto = build()
    path = source / "model.onnx"
    onnx.save_model(
        *(proto, str(path)), save_as_external_data=True, location="w.json", size_threshold=0
    )
    before = snapshot(source)
    assert widthfold("optimize", path, target / "out.onnx", "--factor", 8, *FAST).code == 0
    assert snapshot(source) == before
    assert len(names(target)) == 2
    assert widthfold("verify", path, target / "out.onnx", "--no-timing", *FAST).code == 0
    for tensor in onnx.load(target / "out.onnx", load_external_data=False).graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            assert tensor.data_location == onnx.TensorProto.EXTERNAL
    # A report, an output or a rerun takes none of it away.
    for name in ("w.json", "report.json"):
        report = ("--report", source / name)
        run = widthfold("optimize", path, source / "o.onnx", "--factor", 8, *report)
        assert run.code == (2 if name == "w.json" else 0)
    assert widthfold("optimize", path, source / "w.json", "--factor", 8).code == 2
    assert {k: v for k, v in snapshot(source).items() if k in before} == before


def test_operators_of_the_runtime_need_no_import_and_outputs_no_type(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1, 3, 12, 13] x) => (float[1, 2, 12, 13] y) {
        [first] a = Conv <pads = [1, 1, 1, 1]> (x, w)
        b = com.microsoft.Gelu (a)
        [second] y = Conv <pads = [1, 1, 1, 1]> (b, v)
    }"""
    proto = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in (("w", (2, 3, 3, 3)), ("v", (2, 2, 3, 3))):
        weight = (rng.integers(-3, 4, shape) / 4).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(weight, name))
    proto.graph.name = ""
    proto.graph.output[0].ClearField("type")
    source, out = save(proto, tmp_path / "in.onnx"), tmp_path / "out.onnx"
    run = widthfold("optimize", source, out, "--factor", 4, "--axis", "height", "--seeds", 1)
    assert run.code == 0, run.err
    assert "2 of 2 Conv nodes folded" in run.out
    assert "proof: equal" in run.out


def test_layers_behind_operators_of_the_runtime_alone_are_folded(tmp_path: Path) -> None:
    """As in models of Windows ML: onnx has neither ImageScaler nor Crop."""
    text = """<ir_version: 4, opset_import: ["" : 7]>
    g (float[N, 3, 12, 13] x) => (float[N, 2, 8, 9] y) {
        scaled = ImageScaler <scale = 0.5, bias = [1.0, 2.0, 3.0]> (x)
        [first] a = Conv <pads = [1, 1, 1, 1]> (scaled, w)
        cropped = Crop <border = [2, 2, 2, 2]> (a)
        b = ParametricSoftplus <alpha = 0.5, beta = 2.0> (cropped)
        [second] y = Conv <pads = [1, 1, 1, 1]> (b, v)
    }"""
    proto = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in (("w", (2, 3, 3, 3)), ("v", (2, 2, 3, 3))):
        weight = (rng.integers(-3, 4, shape) / 4).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(weight, name))
    source, out = save(proto, tmp_path / "in.onnx"), tmp_path / "out.onnx"
    run = widthfold("optimize", source, out, "--factor", 4, "--axis", "height", "--seeds", 1)
    assert run.code == 0, run.err
    assert "2 of 2 Conv nodes folded" in run.out
    assert "proof: equal" in run.out
