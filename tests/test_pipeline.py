"""The steps of the commands: proofs, protected files, and reports."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import widthfold_onnx as wf
from tests.cli.tool import widthfold
from tests.reports.sample import passing
from tests.running import opened
from tests.small_models import LAYER, TWO_CONVS, build, save
from widthfold_onnx import CheckFailedError, InvalidModelError, UsageError, pipeline
from widthfold_onnx.decide import match
from widthfold_onnx.evidence import delivery
from widthfold_onnx.evidence.checks import verification_of
from widthfold_onnx.evidence.delivery import InMemory, IntoFile
from widthfold_onnx.model.document import Document
from widthfold_onnx.model.loader import LoadedModel, Model, load
from widthfold_onnx.options import (
    DeliveryOptions,
    FoldOptions,
    Provider,
    SearchOptions,
    VerifyOptions,
)
from widthfold_onnx.pipeline import Result
from widthfold_onnx.progress import Step, progress_to
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.results import OptimizeReport, VerifyReport
from widthfold_onnx.rewrite import reading
from widthfold_onnx.rewrite.rewriting import Rewriting
from widthfold_onnx.rules import layer_reading
from widthfold_onnx.rules.layers import Layer, Site
from widthfold_onnx.rules.quantization import ExtentsOf

FACTOR_4 = FoldOptions(factor=4)
BY_DEFAULT = SearchOptions()

OPEN = LAYER.replace("8,16]", "8,w]")
"""The layer at any width."""


def with_data_beside(folder: Path) -> LoadedModel:
    """A model whose weights lie in the file m.data beside it."""
    saved = {"save_as_external_data": True, "size_threshold": 0, "location": "m.data"}
    onnx.save(build(LAYER), folder / "m.onnx", **saved)
    return load(folder / "m.onnx")


def in_memory(
    model: onnx.ModelProto, options: FoldOptions, search_options: SearchOptions = BY_DEFAULT
) -> Result:
    loaded = Model(model, None)
    return pipeline.optimize(loaded, options, search_options, InMemory(loaded))


def test_what_a_plan_makes_of_a_model_in_memory_is_proved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = with_data_beside(tmp_path)
    plan = pipeline.optimize(loaded, FACTOR_4, BY_DEFAULT).plan
    other = build(LAYER, seed=1)
    monkeypatch.setattr(Rewriting, "carry_out", lambda rewriting: other)
    with pytest.raises(CheckFailedError, match="proof: different"):
        pipeline.apply(loaded, plan, InMemory(loaded))
    assert pipeline.apply(loaded, plan, InMemory(loaded, no_verify=True)).model is other


def test_at_a_fixed_factor_each_layer_is_read_once_and_its_form_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names: list[str] = []

    def read_layer(document: Document, site: Site, *extents: ExtentsOf) -> Layer | Refusal:
        names.append(site.name)
        return layer_reading.read_layer(document, site, *extents)

    monkeypatch.setattr(reading, "read_layer", read_layer)
    monkeypatch.setattr(match, "form_of", None)  # makes forms of specs
    result = in_memory(build(TWO_CONVS), FACTOR_4)
    assert codes(result.report) == {"first": "folded", "Conv -> y": "folded"}
    assert names == ["first", "Conv -> y"]


def test_the_data_of_a_model_is_no_output(tmp_path: Path) -> None:
    loaded = with_data_beside(tmp_path)
    data = tmp_path / "m.data"
    before = data.read_bytes()
    with pytest.raises(UsageError, match="is an input"):
        IntoFile(loaded, data, None)
    out = tmp_path / "out.onnx"
    IntoFile(loaded, out, None)
    with pytest.raises(UsageError, match="is an input"):
        IntoFile(loaded, out, None, [out])
    assert data.read_bytes() == before


def test_a_model_in_memory_gets_the_layout_of_its_provider() -> None:
    model, last = build(LAYER), SearchOptions(provider_options={"prefer_nhwc": "1"})
    for search_options, is_last in ((BY_DEFAULT, False), (last, True)):
        result = in_memory(model, FACTOR_4, search_options)
        assert [site.form.endswith(" in NHWC") for site in result.report.sites] == [is_last]


def test_a_model_in_memory_is_proved_at_its_only_sizes() -> None:
    model = build(OPEN)
    options = replace(FACTOR_4, input_shapes={"x": (1, 2, 8, 24)}, fixed_shapes=True)
    new_model = in_memory(model, options).model
    assert new_model.graph.input[0].type.tensor_type.shape.dim[3].dim_value == 24


def test_the_report_of_a_model_in_memory_has_its_name_and_the_bytes_of_both_models() -> None:
    model = build(LAYER)
    loaded = Model(model, None, name="some.onnx")
    result = pipeline.optimize(loaded, FACTOR_4, BY_DEFAULT, InMemory(loaded))
    assert result.report.model == "some.onnx"
    sizes = result.report.summary.bytes_before, result.report.summary.bytes_after
    assert sizes == (model.ByteSize(), result.model.ByteSize())
    assert sizes[0] < sizes[1]


def test_the_report_has_the_values_of_the_inputs(tmp_path: Path) -> None:
    text = LAYER.replace("] x)", "] x, float rate)").replace("Relu (c)", "Mul (c, rate)")
    loaded = load(save(build(text), tmp_path / "m.onnx"))
    chosen = SearchOptions(values={"rate": (2.0,)})
    report = pipeline.optimize(loaded, FACTOR_4, chosen).report
    assert report.values == [{"rate": [2.0]}]


def test_stored_inputs_give_the_sizes(tmp_path: Path) -> None:
    loaded = load(save(build(OPEN), tmp_path / "m.onnx"))
    stored, sizes = tmp_path / "x.npy", (1, 2, 8, 20)
    np.save(stored, np.ones(sizes, np.float32))
    inputs = {"inputs": (str(stored),)}
    assert pipeline.optimize(loaded, FACTOR_4, SearchOptions(**inputs)).plan.sizes == (
        {"x": sizes},
    )
    report = wf.verify(loaded.path, loaded.path, **inputs, seeds=0, truth_work=0, no_timing=True)
    assert report.proof.extents[0] == {"x": list(sizes)}
    assert report.assumed is None


def test_what_was_just_folded_is_proved_and_compared_as_verify_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This is the default, from Python and in the commands."""
    seen: list[VerifyOptions] = []

    def verify(*arguments: object) -> VerifyReport:
        seen.extend(item for item in arguments if isinstance(item, VerifyOptions))
        return passing()

    monkeypatch.setattr(delivery, "verify", verify)
    path, file, out = (tmp_path / name for name in ("m.onnx", "plan.json", "out.onnx"))
    loaded = load(save(build(LAYER), path))
    plan = pipeline.optimize(loaded, FACTOR_4, BY_DEFAULT).plan
    plan.save(file)
    wf.optimize(path, out, factor=4)
    wf.apply(path, plan, out)
    assert widthfold("optimize", path, out, "--factor", 4).code == 0
    assert widthfold("apply", path, file, out).code == 0
    options = DeliveryOptions(needs_proof=True, input_shapes=plan.sizes)
    assert seen == [options] * 4
    own = {"needs_proof", "timing"}
    for field in {item.name for item in fields(VerifyOptions)} - own:
        assert getattr(DeliveryOptions(), field) == getattr(VerifyOptions(), field)


@pytest.mark.parametrize("changed", ["m.onnx", "out.onnx", "m.data", "out.data"])
def test_proof_and_values_are_of_the_same_bytes(changed: str, tmp_path: Path) -> None:
    """A build writes as many other bytes between proof and comparison, and restores the date."""
    for name in ("m", "out"):
        model = build(LAYER)
        model.producer_name = "first"
        data = {"location": f"{name}.data", "size_threshold": 0}
        onnx.save(model, tmp_path / f"{name}.onnx", save_as_external_data=True, **data)

    def build_meanwhile(step: Step) -> None:
        if step.text.startswith("out.onnx, level disabled"):  # the proof was before
            file = tmp_path / changed
            content, status = file.read_bytes(), file.stat()
            is_model = file.suffix == ".onnx"
            last = bytes([content[-1] ^ 1])
            file.write_bytes(
                content.replace(b"first", b"other") if is_model else content[:-1] + last
            )
            os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
            assert file.stat().st_size == status.st_size

    old, new = load(tmp_path / "m.onnx"), load(tmp_path / "out.onnx")
    options = VerifyOptions(provider=Provider.CPU, seeds=1, timing=False)
    assert verification_of(old, new, options).verdict == "pass"
    error = f"^{Path(changed).stem}.onnx was changed in the meantime$"
    with progress_to(build_meanwhile), pytest.raises(InvalidModelError, match=error):
        verification_of(old, new, options)


NO_LAYER = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2, 3] x) => (float[2, 3] y) { y = Relu (x) }"""


@pytest.mark.parametrize("text", [LAYER, NO_LAYER], ids=["verified", "copied"])
def test_the_original_that_was_decided_on_is_the_one_that_is_delivered(
    tmp_path: Path, text: str
) -> None:
    path = save(build(text), tmp_path / "m.onnx")
    loaded = load(path)
    other = build(text)
    other.producer_name = "build"
    save(other, path)
    with pytest.raises(InvalidModelError, match=r"^m.onnx was changed in the meantime$"):
        target = IntoFile(loaded, tmp_path / "out.onnx", DeliveryOptions())
        pipeline.optimize(loaded, FACTOR_4, BY_DEFAULT, target)
    assert not (tmp_path / "out.onnx").exists()


BESIDE = """<ir_version: 8, opset_import: ["" : 17]>
main (float[5, 1, 8, 16] x{INPUTS}) => (float[N, 3, 8, 16] y, float[5, 3, 8, 16] z)
<float[3, 1, 3, 3] w, int64[1] zero = {0}, int64[2] parts = {2, 3}> {
  {NODES}
  [late] c = Conv <pads = [1, 1, 1, 1]> (part, w)
  y = Relu (c)
  [plain] z = Conv <pads = [1, 1, 1, 1]> (x, w)
}"""
"""Two layers, one of them behind nodes that decide how many samples it reads."""

DECIDING = {
    "nonzero": (
        "",
        """m = ReduceMax <axes = [1, 2, 3], keepdims = 0> (x)
        n = NonZero (m)
        i = Squeeze (n, zero)
        part = Gather <axis = 0> (x, i)""",
    ),
    "length regulator": (
        ", int64[5] lengths",
        """total = ReduceSum <keepdims = 0> (lengths)
        first = Constant <value = int64 {0}> ()
        step = Constant <value = int64 {1}> ()
        five = Constant <value = int64 {5}> ()
        steps = Range (first, total, step)
        i = Mod (steps, five)
        part = Gather <axis = 0> (x, i)""",
    ),
    "sequence": (
        ", int64 i",
        """s = SplitToSequence <axis = 0> (x, parts)
        part = SequenceAt (s, i)""",
    ),
    "loop": (
        ", int64 trips",
        """t = Constant <value = bool {1}> ()
        part = Loop (trips, t) <body = b (int64 i, bool d) => (bool e, float[1, 8, 16] row) {
            e = Identity (d)
            row = Gather <axis = 0> (x, i)
        }>""",
    ),
}


def beside(name: str) -> onnx.ModelProto:
    """The two layers with a weight that both read."""
    inputs, nodes = DECIDING[name]
    return build(BESIDE.replace("{INPUTS}", inputs).replace("{NODES}", nodes))


def codes(report: OptimizeReport) -> dict[str, str]:
    return {site.node: site.code for site in report.sites}


LATE_LEFT_OUT = {"late": "fold-not-proved", "plain": "folded"}


@pytest.mark.parametrize("name", DECIDING)
def test_a_fold_that_no_proof_shows_costs_no_other(name: str) -> None:
    result = in_memory(beside(name), FACTOR_4)
    assert codes(result.report) == LATE_LEFT_OUT
    reasons = {site.node: site.reason for site in result.report.sites}
    assert reasons["late"].startswith("the proof does not show it equal: y (node 'y/widthfold/")
    assert [layer.node for layer in result.plan.layers] == ["plain"]
    weights = {
        node.name: node.input[1] for node in result.model.graph.node if node.name in LATE_LEFT_OUT
    }
    assert (weights["late"], weights["plain"]) == ("w", "w/widthfold")


def test_a_file_is_written_without_the_fold_that_no_proof_shows(tmp_path: Path) -> None:
    path, out = tmp_path / "m.onnx", tmp_path / "out.onnx"
    save(beside("nonzero"), path)
    report = wf.optimize(path, out, factor=4).report
    assert codes(report) == LATE_LEFT_OUT
    assert report.verification is not None
    assert (report.written, report.verification.verdict) == ("out.onnx", "pass")
    x = np.random.default_rng(0).standard_normal((5, 1, 8, 16)).astype(np.float32)
    before, after = (opened(file).run(None, {"x": x}) for file in (path, out))
    for first, second in zip(before, after, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("node", ["late", "plain"])
def test_no_fold_that_is_different_is_left_out_in_silence(
    node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A weight that is wrong is a fault, behind extents that nobody knows, too."""
    carry_out = Rewriting.carry_out

    def carry_out_wrongly(rewriting: Rewriting) -> onnx.ModelProto:
        model = carry_out(rewriting)
        (folded_node,) = (n for n in model.graph.node if n.name == node)
        (weight,) = (t for t in model.graph.initializer if t.name == folded_node.input[1])
        array = numpy_helper.to_array(weight).copy()
        array[tuple(np.argwhere(array)[0])] *= 2
        wrong = numpy_helper.from_array(array, "wrong")
        model.graph.initializer.append(wrong)
        folded_node.input[1] = "wrong"
        return model

    monkeypatch.setattr(Rewriting, "carry_out", carry_out_wrongly)
    with pytest.raises(CheckFailedError, match="proof: different"):
        in_memory(beside("nonzero"), FACTOR_4)


def test_a_layer_whose_input_has_no_shape_is_left_alone() -> None:
    model = build("""<ir_version: 8, opset_import: ["" : 17]>
    net (float[1, 2, 5, 16] x) => (float[1, 3, 5, 16] y)
    <float[3, 2, 1, 1] w> { y = Conv (x, w) }""")
    assert wf.fold(model, factor=4) is not model
    model.graph.input[0].type.tensor_type.ClearField("shape")
    assert wf.fold(model, factor=4) is model
