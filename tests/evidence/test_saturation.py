"""Forms that a search leaves out as they would saturate further than the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx.external_data_helper import convert_model_to_external_data

from tests.evidence.parity.alternating import FURTHER, VALUES, alternating, alternating_floats
from tests.folding import optimize
from tests.rewrite.quantized.models import rounding
from tests.small_models import MODELS
from widthfold_onnx import pipeline
from widthfold_onnx.evidence import saturation
from widthfold_onnx.evidence.saturation import usable_forms
from widthfold_onnx.model.linking import NodeName
from widthfold_onnx.model.loader import LoadedModel, load
from widthfold_onnx.model.writer import copy_data
from widthfold_onnx.options import AxisName, FoldOptions, Layout
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rewrite import scratch
from widthfold_onnx.rewrite.record import FOLD_KEY
from widthfold_onnx.runtime.kernels import u8s8_error

ANY = FoldOptions(ragged=True)
WORSE = f"{FURTHER}; this CPU saturates"


def loaded(model: onnx.ModelProto, folder: Path) -> LoadedModel:
    onnx.save(model, folder / "model.onnx")
    return load(folder / "model.onnx")


def chosen(
    bad: set[int],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    model: onnx.ModelProto | None = None,
) -> FoldOptions:
    """Remaining forms where some folds saturate: along the width 0 and 1, in both layouts."""

    def judged(function: object, original: Path, folds: Sequence[Path], *_: object) -> list[str]:
        assert all(load(fold).proto.graph.node for fold in folds)
        return [WORSE if i in bad else "" for i in range(len(folds))]

    monkeypatch.setattr(saturation, "isolated", judged)
    options, skipped = usable_forms(loaded(model or alternating([1, 2, 3, 4]), folder), ANY, VALUES)
    assert not skipped
    return options


def test_what_passes_everywhere_is_not_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert chosen(set(), tmp_path, monkeypatch) == ANY


def test_external_weights_are_external_in_the_folds_that_are_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: list[int] = []

    def judged(function: object, original: Path, folds: Sequence[Path], *_: object) -> list[str]:
        weights = [
            t for fold in folds for t in load(fold).proto.graph.initializer if len(t.dims) > 1
        ]
        stored.extend(weight.data_location for weight in weights)
        return [""] * len(folds)

    monkeypatch.setattr(saturation, "isolated", judged)
    model = alternating([1, 2, 3, 4])
    convert_model_to_external_data(model, location="model.data", size_threshold=0)
    usable_forms(loaded(model, tmp_path), ANY, VALUES)
    assert set(stored) == {onnx.TensorProto.EXTERNAL}


@pytest.mark.parametrize(("bad", "layout"), [(0, Layout.NHWC), (1, Layout.NCHW)])
def test_a_layout_that_passes_is_kept_along_every_axis(
    bad: int, layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert chosen({bad}, tmp_path, monkeypatch) == replace(ANY, layout=layout)


def test_an_axis_that_passes_is_kept_where_no_layout_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folds 0 and 1 are of height and width in one layout, 2 and 3 in the other."""
    narrow = replace(ANY, axis=AxisName.WIDTH, layout=Layout.NCHW)
    assert chosen({0, 2}, tmp_path, monkeypatch, model=rounding(1)) == narrow


def test_the_layer_that_saturates_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other layers keep every form."""
    model = named("seco[n]d*")

    def judged(function: object, original: Path, folds: Sequence[Path], *_: object) -> list[str]:
        return [WORSE if "seco[n]d*" in folded_in(fold) else "" for fold in folds]

    monkeypatch.setattr(saturation, "isolated", judged)
    options, forms = usable_forms(loaded(model, tmp_path), ANY, VALUES)
    assert options == replace(ANY, skip=("seco[[]n]d[*]",))
    why = f"left alone, as its fold is {FURTHER}; this CPU saturates"
    assert forms == {NodeName("", "seco[n]d*"): Refusal(Code.SATURATES, why)}


def test_external_data_are_copied_once_however_many_folds_are_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = named("second")
    convert_model_to_external_data(model, location="model.data", size_threshold=0)
    original, rounds, copies = loaded(model, tmp_path), list[int](), list[Path]()

    def judged(function: object, original: Path, folds: Sequence[Path], *_: object) -> list[str]:
        rounds.append(len(folds))
        return [WORSE if "second" in folded_in(fold) else "" for fold in folds]

    def counted(proto: onnx.ModelProto, folder: Path, into: Path) -> None:
        copies.append(into)
        copy_data(proto, folder, into)

    monkeypatch.setattr(saturation, "isolated", judged)
    monkeypatch.setattr(scratch, "copy_data", counted)
    _, forms = usable_forms(original, ANY, VALUES)
    assert list(forms) == [NodeName("", "second")]
    assert len(rounds) > 2
    assert len(copies) == 1
    assert not copies[0].exists()


def test_layers_that_pass_alone_but_not_together_are_all_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judged(function: object, original: Path, folds: Sequence[Path], *_: object) -> list[str]:
        return [WORSE if len(folded_in(fold)) > 1 else "" for fold in folds]

    monkeypatch.setattr(saturation, "isolated", judged)
    options, forms = usable_forms(loaded(named("second"), tmp_path), ANY, VALUES)
    assert options.skip == tuple(name.node for name in forms) == ("first", "second", "third")


def named(second: str) -> onnx.ModelProto:
    model = onnx.load(MODELS / "quantized_cnn.onnx")
    next(node for node in model.graph.node if node.name == "second").name = second
    return model


def folded_in(path: Path) -> set[str]:
    nodes = load(path).proto.graph.node
    return {n.name for n in nodes if any(entry.key == FOLD_KEY for entry in n.metadata_props)}


def test_a_model_without_folds_is_left_to_the_search(tmp_path: Path) -> None:
    model = loaded(alternating([1, 2, 3, 4]), tmp_path)
    options = replace(ANY, axis=AxisName.HEIGHT)
    assert usable_forms(model, options, VALUES) == (options, {})


def test_where_every_fold_saturates_further_the_model_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, out = loaded(alternating_floats(), tmp_path), tmp_path / "out.onnx"
    monkeypatch.setattr(pipeline, "run_as_judged", lambda *arguments: True)
    if not u8s8_error():
        assert usable_forms(model, ANY, VALUES) == (ANY, {})
        bad = f"{FURTHER}; this CPU's 8-bit kernels saturate (no VNNI)"
        monkeypatch.setattr(saturation, "isolated", lambda f, m, files, o: [bad] * len(files))
    report = optimize(model.path, out, ANY, VALUES)
    (site,) = report.sites
    assert (site.status, site.code, report.written) == ("kept", "saturates", "out.onnx")
    assert site.reason.startswith(f"left alone, as its fold is {FURTHER}; this CPU's 8-bit kernels")
    assert out.read_bytes() == model.path.read_bytes()
