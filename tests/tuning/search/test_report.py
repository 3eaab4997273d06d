"""The report of a search says why each layer has its form, and lists the measurements."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.folding import optimize
from tests.small_models import build, save
from tests.tuning.search.nets import ALL, found, status
from tests.tuning.workloads.tool import search_text
from tests.tuning.world import World, doubled, enter
from widthfold_onnx.options import FoldOptions, SearchOptions


def test_where_nothing_ran_the_report_says_so(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(monkeypatch, World(lambda layer, form: "no kernel", ALL))
    report = found(model)
    assert set(status(report).values()) == {"no-gain"}
    assert all(site.reason.endswith(" forms ran: no kernel") for site in report.sites)
    assert all(site.gain is None for site in report.sites)
    assert model.with_name("out.onnx").read_bytes() == model.read_bytes()


def test_what_the_original_gains_by_its_level_alone_is_said(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = enter(monkeypatch, World(doubled, dict.fromkeys(ALL, -1.0)))
    world.advice = "it is faster otherwise"
    report = found(model)
    assert (report.search.accepted, report.search.note) == (False, world.advice)
    assert search_text(report.search).endswith(
        "folded, the whole model ran at 0.91x [0.90, 0.91] at x 1x1x4x32; its low end 0.905 is not "
        "above 1.020, the limit of noise (A/A control 1.005); it is faster otherwise"
    )


def test_a_gain_within_the_noise_is_told_with_the_rule_that_it_fails(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter(monkeypatch, World(doubled, ALL, noise=0.25))
    message = search_text(found(model).search)
    assert (
        "ran at 1.43x [1.07, 1.79] at x 1x1x4x32; its low end 1.071 is not above 1.500" in message
    )
    assert "(A/A control 1.250)" in message


def test_what_was_not_measured_in_time_is_not_called_known(model: Path) -> None:
    report = found(model, time_budget=1e-6)
    assert report.search.pending == 3
    assert "3 layers left to measure" in search_text(report.search)
    ran = [site for site in report.sites if site.gain is not None]
    assert len(ran) <= 1, "the first layer alone races when no time is left"


def test_a_form_that_one_of_two_equal_layers_does_not_allow_is_the_others_alone(
    tmp_path: Path,
) -> None:
    """Both run at the same sizes, and the extents of one are open."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1,1,256,256] x, float[1,1,H,W] z) => (float[1,4,256,256] a, float[1,4,H,W] b)
    <float[4,1,3,3] v, float[4,1,3,3] w>
    { [fixed] a = Conv <pads = [1,1,1,1]> (x, v)
      [open] b = Conv <pads = [1,1,1,1]> (z, w) }"""
    model = save(build(text), tmp_path / "model.onnx")
    shape = (1, 1, 256, 256)
    report = optimize(
        model,
        tmp_path / "out.onnx",
        FoldOptions(input_shapes={"x": shape, "z": shape}),
        None,
        SearchOptions(measure=False, target="cpu-avx512"),
    )
    assert {site.node: site.status for site in report.sites} == {
        "fixed": "folded",
        "open": "refused",
    }
    assert report.search.accepted
