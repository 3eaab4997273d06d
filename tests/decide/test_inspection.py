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


def vector_macs(inputs: int, outputs: int, taps: int, positions: int) -> int:
    """Multiply-adds of a Conv of one group whose output channels are computed 16 at once."""
    return positions * inputs * taps * 16 * -(-outputs // 16)


@pytest.mark.parametrize(
    ("inputs", "outputs", "folded_taps", "only_multiplies"),
    [
        (1, 1, 3 * 3, False),  # fills half of a vector
        (5, 28, 3 * 3, True),  # 28 of 32 lanes were used before
        (3, 16, 3 * 3, True),
    ],
)
def test_a_fold_says_how_many_vectors_it_takes(
    inputs: int, outputs: int, folded_taps: int, only_multiplies: bool, tmp_path: Path
) -> None:
    """A kernel of 3 along a width that is folded by 8 reads 3 tiles."""
    model = conv([1, inputs, 7, 24], (outputs, inputs, 3, 3), pads=[1, 1, 1, 1])
    (site,) = inspect(save(model, tmp_path / "model.onnx"), FoldOptions(factor=8)).sites
    form = next(form for form in site.choices if form.axis == "width")
    before = vector_macs(inputs, outputs, 3 * 3, 7 * 24)
    after = vector_macs(8 * inputs, 8 * outputs, folded_taps, 7 * 3)
    assert form.lanes_ratio == pytest.approx(after / before, abs=1e-4)
    assert form.only_multiplies == only_multiplies == (after > before)


def test_depthwise_channels_share_a_vector(tmp_path: Path) -> None:
    """Folded samples become groups: 8 of one channel fill half a vector, as one did."""
    model = conv([16, 1, 7, 11], (1, 1, 3, 3))
    (site,) = inspect(save(model, tmp_path / "model.onnx"), FoldOptions(factor=8)).sites
    form = next(form for form in site.choices if form.axis == "batch")
    assert (form.flops_ratio, form.lanes_ratio) == (1.0, 1 / 8)


def test_rows_of_a_product_fill_vectors(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1, 40, 5] x) => (float[1, 40, 3] y) <float[5, 3] w> { y = MatMul (x, w) }"""
    (site,) = inspect(save(build(text), tmp_path / "model.onnx"), FoldOptions(factor=8)).sites
    (form,) = site.choices
    assert (form.channels, form.flops_ratio) == ("40 -> 24", 8.0)
    assert form.lanes_ratio == vector_macs(40, 24, 1, 5) / vector_macs(5, 3, 1, 40) == 2.0


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
