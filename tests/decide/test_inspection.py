"""The report of `inspect`: each layer with its shapes, cost, forms and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.folding import inspect
from tests.small_models import MODELS, build, conv, save
from widthfold_onnx.errors import UsageError
from widthfold_onnx.options import FoldOptions


def test_every_site_has_its_figures(tmp_path: Path) -> None:
    report = inspect(save(build(), tmp_path / "model.onnx"), FoldOptions(factor=4))
    assert (report.opset, report.ir_version, report.nodes) == (17, 8, 3)
    first, second = report.sites
    assert (first.node, first.op, first.graph) == ("first", "Conv", "")
    assert first.input_shape == [1, 2, 6, 16]
    assert first.weight_shape == [3, 2, 3, 3]
    assert first.output_shape == [1, 3, 6, 16]
    assert first.flops == 3 * 6 * 16 * 2 * 9
    assert second.flops == 2 * 6 * 16 * 3 * 5
    for site in (first, second):
        assert site.channels
        assert site.alignment
        assert {choice.factor for choice in site.choices} == {4}
        assert {choice.axis for choice in site.choices} >= {"width"}
        assert site.refusals
        for choice in site.choices:
            assert choice.flops_ratio > 0
            assert choice.bytes_ratio > 0
            assert 0 <= choice.structural_zeros < 1
            assert choice.form.split()[0] in ("view", "move")


def test_channels_are_aligned_to_whole_tiles(tmp_path: Path) -> None:
    report = inspect(save(build(), tmp_path / "model.onnx"), FoldOptions(factor=4))
    alignments = [site.alignment for site in report.sites]
    assert alignments == ["2 of 8 -> 3 of 8", "3 of 8 -> 2 of 8"]


@pytest.mark.parametrize(("blocks", "is_listed"), [(1, False), (2, True)])
def test_a_layer_that_falls_into_groups_says_so(
    blocks: int, is_listed: bool, tmp_path: Path
) -> None:
    model = conv([1, 4, 6, 8], (4, 4, 3, 3), blocks=blocks)
    (site,) = inspect(save(model, tmp_path / "model.onnx"), FoldOptions(factor=8)).sites
    assert (", falls into 2 groups" in site.attributes) == is_listed


def test_an_open_extent_is_a_question_mark() -> None:
    site, *_ = inspect(MODELS / "dynamic_batch.onnx", FoldOptions(factor=8)).sites
    assert site.node
    assert site.input_shape[0] == "?"


def test_without_a_factor_there_are_no_forms_to_show(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="inspect measures nothing"):
        inspect(save(build(), tmp_path / "model.onnx"), FoldOptions())
