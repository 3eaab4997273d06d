"""`widthfold inspect`: every layer with its figures, forms, refusals and hints."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import widthfold_onnx
from tests.cli.tool import names, on_terminal, snapshot, widthfold
from tests.small_models import MODELS, build, save
from widthfold_onnx.runtime.session import open_session

SCHEMA = json.loads((Path(widthfold_onnx.__file__).parent / "schemas" / "inspect.json").read_text())


def inspect(path: Path) -> dict:
    file = path.with_name("report.json")
    run = widthfold("inspect", path, "--report", file)
    assert (run.code, run.err) == (0, "")
    report = json.loads(file.read_bytes())
    jsonschema.validate(report, SCHEMA)
    return report


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save(build(), tmp_path / "model.onnx")


def test_a_pipe_gets_plain_text(model: Path) -> None:
    run = widthfold("inspect", model, env={"FORCE_COLOR": "1"})
    assert (run.code, run.err) == (0, "")
    assert "\x1b" not in run.out
    for name in ("first", "second"):
        assert sum(line.split()[:1] == [name] for line in run.out.splitlines()) == 1
    head, meaning, padding = run.out.splitlines()[-3:]
    assert head == (
        "model.onnx: 3 nodes, opset 17; 2 of 2 Conv can be folded; 1 fold only multiplies work"
    )
    assert meaning.startswith("only multiplies work: the fold computes more vectors of 16 channels")
    assert padding.startswith("channels could be padded to multiples of 4: 1 layer: first 3 -> 4")


NAME = ";".join(f"model_1/conv2d_{i}/BiasAdd/ReadVariableOp" for i in range(7))


@pytest.mark.parametrize("verb", ["inspect", "optimize"])
def test_a_long_name_is_whole_in_details_and_json_alone(verb: str, tmp_path: Path) -> None:
    proto = build()
    for name, node in zip(("a", "b"), (proto.graph.node[0], proto.graph.node[2]), strict=True):
        node.name = f"{NAME};{name};{NAME}"
    path = save(proto, tmp_path / "model.onnx")
    words = (verb, path, "--factor", 2)
    brief = widthfold(*words).out
    rows = [line for line in brief.splitlines() if line.startswith("…")]
    shown = [row.split()[0] for row in rows]
    assert len(set(shown)) == 2
    assert all("…" in name and len(name) <= 48 for name in shown)
    assert NAME not in brief
    html, markdown = (widthfold(*words, "--format", word).out for word in ("html", "markdown"))
    assert NAME not in markdown
    assert html.count(f'title="{NAME};') == 2
    assert html.count(f"{NAME};a;{NAME}") == 1
    for text in (widthfold(*words, "--details").out, widthfold(*words, "--format", "json").out):
        assert f"{NAME};a;{NAME}" in text
        assert f"{NAME};b;{NAME}" in text


def test_a_terminal_gets_a_framed_table(model: Path) -> None:
    run = on_terminal("inspect", model)
    assert run.code == 0
    assert "───" in run.out


def test_a_file_in_the_blocked_layout_of_the_runtime_is_named(tmp_path: Path) -> None:
    weight = ", ".join(map(str, range(64)))
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[1, 8, 12, 13] x) => (float[1, 8, 12, 13] y) <float[8, 8, 1, 1] w = {{{weight}}}> {{
        y = Conv (x, w)
    }}"""
    saved = tmp_path / "saved.onnx"
    open_session(parser.parse_model(text), optimized=saved)
    if not any(node.domain == "com.microsoft.nchwc" for node in onnx.load(saved).graph.node):
        pytest.skip("the runtime has no blocked layout for this processor")
    remark = "(com.microsoft.nchwc), which are no layers here: 2; the runtime saved this file at "
    assert remark in widthfold("inspect", saved).out
    assert remark in widthfold("optimize", saved, "--factor", 4).out
    source = save(build(), tmp_path / "model.onnx")
    assert "blocked layout" not in widthfold("inspect", source).out


def agreeing(path: Path, *options: object) -> list[dict]:
    """Return the sites of a model, after `optimize` and `inspect` agreed on them."""
    run = widthfold("optimize", path, *options, "--format", "json")
    assert (run.code, run.err) == (0, "")
    sites = json.loads(run.out)["sites"]
    run = widthfold("inspect", path, *options, "--format", "json")
    assert (run.code, run.err) == (0, "")
    report = json.loads(run.out)
    jsonschema.validate(report, SCHEMA)
    assert [s["node"] for s in sites] == [s["node"] for s in report["sites"]]
    for site, inspected in zip(sites, report["sites"], strict=True):
        forms = {(c["axis"], c["form"]) for c in inspected["choices"]}
        assert (site["status"] == "folded") == bool(forms)
        if forms:
            assert (site["axis"], site["form"]) in forms
            assert inspected["hint"] == ""
        else:
            assert (site["code"], site["reason"]) == code_and_reason(inspected)
    return report["sites"]


def code_and_reason(site: dict) -> tuple[str, str]:
    """Code and reason of a site without folds, as `optimize` puts them."""
    whys = {axis: why.split(": ", 1) for axis, why in site["refusals"].items()}
    reasons = [r if axis == "any axis" else f"{axis}: {r}" for axis, (_, r) in whys.items()]
    code, *_ = (code for code, _ in whys.values())
    return code, "; ".join([*reasons, *filter(None, [site["hint"]])])


def test_what_inspect_lists_is_what_optimize_takes() -> None:
    for path in sorted(MODELS.glob("*.onnx")):
        agreeing(path, "--factor", 8)


OPEN = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 2, H, W] x) => (float[N, 3, 7, 16] y) <float[3, 2, 3, 3] w, float[3, 3, 1, 3] v>
{
    [first] a = Conv <auto_pad = "SAME_UPPER", strides = [2, 2]> (x, w)
    [second] y = Conv <pads = [0, 1, 0, 1]> (a, v)
}"""


def test_a_hint_stands_with_what_it_unlocks(tmp_path: Path) -> None:
    path = save(build(OPEN), tmp_path / "model.onnx")
    hint = "--input-shape x:1,2,256,256 folds it"
    first, _ = agreeing(path, "--factor", 8)
    assert first["hint"] == hint
    assert f"; {hint}\n" in widthfold("inspect", path).out
    lines = [line.strip() for line in on_terminal("inspect", path).out.splitlines()]
    assert hint in lines  # on a line of its own
    first, _ = agreeing(path, "--factor", 8, "--input-shape", "x:1,2,256,256")
    assert first["choices"]
    first, _ = agreeing(path, "--factor", 16)
    assert "--input-shape x:1,2,512,512" in first["hint"]


def test_extents_that_the_factor_leaves_over_get_a_hint() -> None:
    (site,) = agreeing(MODELS / "ragged.onnx", "--factor", 8)
    assert site["hint"] == "--ragged folds it"
    (site,) = agreeing(MODELS / "ragged.onnx", "--factor", 8, "--ragged")
    assert site["choices"]


def test_reasons_that_are_none_of_an_axis_are_the_same(model: Path, tmp_path: Path) -> None:
    first, second = agreeing(model, "--factor", 8, "--nodes", "first")
    assert first["choices"]
    assert second["refusals"] == {"any axis": "not-selected: left alone by --nodes or --skip"}
    assert second["input_shape"] == [1, 3, 6, 16]
    proto = build()
    weights = {tensor.name: tensor for tensor in proto.graph.initializer}
    broken = numpy_helper.to_array(weights["w1"]).copy()
    broken[1, 0, 2, 1] = np.nan
    weights["w1"].CopyFrom(numpy_helper.from_array(broken, "w1"))
    first, second = agreeing(save(proto, tmp_path / "nan.onnx"), "--factor", 8)
    assert first["refusals"] == {"any axis": "weight-not-finite: the weight holds NaN or Inf"}
    assert second["choices"]


BRANCH = """<ir_version: 8, opset_import: ["" : 17]>
g (float[1, 3, 4, 16] x, bool c) => (float[1, 3, 4, 16] y)
{
  y = If (c) <
    then_branch = one () => (float[1, 3, 4, 16] o) { [inner] o = Conv (x, w) },
    else_branch = two () => (float[1, 3, 4, 16] p) { p = Tanh (x) }
  >
}"""
BATCH = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 1, 3, 7] x) => (float[N, 1, 3, 7] y) { [inner] y = Conv (x, w) }"""
FIXED = BATCH.replace("N", "8")


@pytest.mark.parametrize(
    ("text", "channels", "guard", "words"),
    [
        (BRANCH, 3, "", ", 1 of them if the proof reaches the fold"),
        (BATCH, 1, "extents", ", 1 of them if the proof reaches the fold"),
        (FIXED, 1, "", ""),
    ],
)
def test_a_fold_that_optimize_may_leave_out_is_counted_apart(
    text: str, channels: int, guard: str, words: str, tmp_path: Path
) -> None:
    proto = onnx.parser.parse_model(text)
    weight = np.ones((channels, channels, 1, 1), np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    path = save(proto, tmp_path / "model.onnx")
    (site,) = inspect(path)["sites"]
    assert site["choices"][0]["guard"] == guard
    assert site["earlier_fold"] is None
    run = widthfold("inspect", path)
    assert f"; 1 of 1 Conv can be folded{words}" in run.out
    assert ("if the proof reaches the fold: a guard, or a branch of" in run.out) == bool(words)
    assert (", guarded" in run.out) == bool(guard)


def test_auto_is_refused_with_what_to_say_instead(model: Path) -> None:
    run = widthfold("inspect", model, "--factor", "auto")
    assert run.code == 2
    assert "give a number; what auto takes is shown by `optimize MODEL`" in run.line
    assert "auto: whatever was measured" not in widthfold("inspect", "--help").out


def test_a_folded_node_shows_how(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    assert widthfold("optimize", model, out, "--factor", 8, "--seeds", 1).code == 0
    report = inspect(out)
    assert report["schema"] == "widthfold.inspect/4"
    for site in report["sites"]:
        assert " by 8, " in site["earlier_fold"]
        assert site["choices"] == []
    shown = widthfold("inspect", out).out
    assert shown.count("folded: ") == 2
    assert shown.count("out.onnx carries folds of an earlier run and is not folded again") == 1


def test_it_writes_nothing_but_the_report(model: Path) -> None:
    before = snapshot(model.parent)
    assert widthfold("inspect", model).code == 0
    assert snapshot(model.parent) == before
    run = widthfold("inspect", model, "--report", model)
    assert run.code == 2
    assert "choose another name" in run.line
    assert snapshot(model.parent) == before
    assert names(model.parent) == ["model.onnx"]


def test_errors_are_one_line(model: Path) -> None:
    for args, code in (
        ((), 2),
        ((model.with_name("gone.onnx"),), 2),
        ((model, "--factor", 0), 2),
        ((model, "--input-shape", "q:1"), 2),
        ((save(build(), model).parent,), 3),
        ((Path(__file__),), 3),
    ):
        run = widthfold("inspect", *args)
        assert run.code == code, (args, run)
        assert run.line


def test_a_glob_that_matches_no_node_is_exit_2(model: Path) -> None:
    run = widthfold("inspect", model, "--nodes", "third")
    assert run.code == 2
    assert "no layer is named 'third'" in run.line


@pytest.mark.parametrize("verb", ["inspect", "optimize"])
@pytest.mark.parametrize("pinned", [False, True])
def test_a_window_larger_than_its_input_is_said_of_the_site(
    verb: str, pinned: bool, tmp_path: Path
) -> None:
    """At the Slice behind it, inference would end the process."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[1, 1, 8, {"w" if pinned else 7}] x) => (float[a, b, c, e] y)
    <float[1, 1, 2, 5] k, int64[1] at = {{1}}, int64[1] to = {{-1}}, int64[1] last = {{3}}> {{
      v = Conv <dilations = [1, 3]> (x, k)
      y = Slice (v, at, to, last, at)
    }}"""
    path = save(build(text), tmp_path / "model.onnx")
    options = ("--input-shape", "x:1,1,8,7") if pinned else ()
    if verb == "optimize":
        options = (*options, "--factor", "2")
    run = widthfold(verb, path, *options)
    assert (run.code, run.err) == (0, "")
    assert "empty-tensor: the output would have the extents [7, -5]" in " ".join(run.out.split())
