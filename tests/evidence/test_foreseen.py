"""Which forms are not looked for where kernels of 8 bits saturate: both CPUs run these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from tests.evidence.test_saturated import FURTHER, VALUES, alternating, alternating_floats
from tests.rewrite.quantized_models import rounding
from widthfold_onnx import AxisName, FoldOptions, foreseen, optimize
from widthfold_onnx.errors import CheckFailedError
from widthfold_onnx.foreseen import usable_forms
from widthfold_onnx.model.loader import LoadedModel, load
from widthfold_onnx.options import Layout
from widthfold_onnx.runtime.saturation import u8s8_error

ANY = FoldOptions(ragged=True)
WORSE = [FURTHER, "this CPU saturates"]


def loaded(model: onnx.ModelProto, folder: Path) -> LoadedModel:
    onnx.save(model, folder / "model.onnx")
    return load(folder / "model.onnx")


def chosen(
    bad: set[int],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: FoldOptions = ANY,
    model: onnx.ModelProto | None = None,
) -> FoldOptions:
    """What is left where some folds saturate further: along the width 0 and 1, in both layouts."""

    def judged(original: Path, folds: Sequence[Path], options: object) -> list[list[str]]:
        assert all(load(fold).proto.graph.node for fold in folds)
        return [WORSE if i in bad else [] for i in range(len(folds))]

    monkeypatch.setattr(foreseen, "saturating_files", judged)
    return usable_forms(loaded(model or alternating([1, 2, 3, 4]), folder), given, VALUES)


def test_what_passes_everywhere_is_not_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert chosen(set(), tmp_path, monkeypatch) == ANY


@pytest.mark.parametrize(("bad", "layout"), [(0, Layout.NHWC), (1, Layout.NCHW)])
def test_a_layout_that_passes_is_kept_along_every_axis(
    bad: int, layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert chosen({bad}, tmp_path, monkeypatch) == replace(ANY, layout=layout)


def test_an_axis_that_passes_is_kept_where_no_layout_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folds 0 and 1 are of height and width in one layout, 2 and 3 in the other."""
    kept = replace(ANY, axis=AxisName.WIDTH, layout=Layout.NCHW)
    assert chosen({0, 2}, tmp_path, monkeypatch, model=rounding(1)) == kept


def test_where_nothing_passes_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckFailedError, match=f"no form passes: {FURTHER}; this CPU saturates"):
        chosen({0, 1}, tmp_path, monkeypatch)
    fixed = replace(ANY, layout=Layout.NHWC, axis=AxisName.WIDTH)
    with pytest.raises(CheckFailedError):
        chosen({0}, tmp_path, monkeypatch, fixed)


def test_a_model_without_folds_is_left_to_the_search(tmp_path: Path) -> None:
    model = loaded(alternating([1, 2, 3, 4]), tmp_path)
    assert usable_forms(model, replace(ANY, axis=AxisName.HEIGHT), VALUES).axis == "height"


def test_no_time_is_spent_where_every_fold_saturates_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded(alternating_floats(), tmp_path)
    monkeypatch.setattr("widthfold_onnx.pipeline.check_file", lambda *given: True)
    if not u8s8_error():
        assert usable_forms(model, ANY, VALUES) == ANY
        return
    with pytest.raises(CheckFailedError) as caught:
        optimize(model.path, tmp_path / "out.onnx", ANY, VALUES)
    assert FURTHER in str(caught.value)
    assert "this CPU's 8-bit kernels saturate (no VNNI): the original" in str(caught.value)
    assert not (tmp_path / "out.onnx").exists()
