"""One call folds a model whichever library holds it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnx_graphsurgeon as gs  # noqa: TID251 - made here, handed to the package
import onnx_ir as ir  # noqa: TID251
import onnxruntime as ort  # noqa: TID251 - runs what came back
import pytest

import widthfold_onnx as wf
from widthfold_onnx import UsageError, delivery, fold, fold_graph, interop
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.results import VerifyReport

MODELS = Path(__file__).parents[1] / "models"
MODEL = MODELS / "paper_conv.onnx"


def run(proto: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(proto.SerializeToString())
    return session.run(None, {session.get_inputs()[0].name: x})[0]


def check(folded: onnx.ModelProto) -> None:
    original = onnx.load(MODEL)
    x = np.random.default_rng(0).standard_normal((1, 1, 32, 64)).astype(np.float32)
    np.testing.assert_allclose(run(folded, x), run(original, x), rtol=0, atol=1e-6)
    assert len(original.graph.node) < len(folded.graph.node)


def test_the_function_is_there_whatever_was_imported_before() -> None:
    import widthfold_onnx.algebra.conv

    assert callable(wf.fold)
    assert widthfold_onnx.algebra.conv.fold_weight


def test_a_message() -> None:
    folded = fold(onnx.load(MODEL), factor=4)
    check(folded)
    assert fold(folded, factor=4) is folded


def test_a_model_of_onnx_ir() -> None:
    model = ir.load(MODEL)
    folded = fold(model, factor=4)
    assert isinstance(folded, ir.Model)
    check(ir.to_proto(folded))
    assert fold(folded) is folded


def test_a_graph_of_graphsurgeon() -> None:
    folded = fold(gs.import_onnx(onnx.load(MODEL)))
    assert isinstance(folded, gs.Graph)
    check(gs.export_onnx(folded))


def test_a_graph_of_graphsurgeon_in_which_nothing_folds() -> None:
    graph = gs.import_onnx(onnx.load(MODEL))
    assert fold(graph, options=FoldOptions(factor=4, skip=("*",))) is graph


def test_no_proof_where_none_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(interop, "proved")
    for model in (onnx.load(MODEL), ir.load(MODEL), gs.import_onnx(onnx.load(MODEL))):
        assert fold(model, prove=False) is not model


def test_weights_that_are_frozen() -> None:
    model = onnx.load(MODEL)
    for tensor in model.graph.initializer:
        kind = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        model.graph.input.append(kind)
    assert fold(model) is model
    folded = fold(model, options=FoldOptions(factor=8, freeze_weights=True))
    assert [value.name for value in folded.graph.input] == [model.graph.input[0].name]
    check(folded)


def test_a_file(tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    assert fold(str(MODEL), 4, out=out) == out
    check(onnx.load(out))


def test_a_file_that_does_not_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verify_files = delivery.verify_files

    def failing(*given: object, **named: object) -> VerifyReport:
        report = verify_files(*given, **named)
        verdict = {"verdict": "fail", "reasons": ["it differs"]}
        return msgspec.structs.replace(report, **verdict)

    monkeypatch.setattr(delivery, "verify_files", failing)
    with pytest.raises(wf.CheckFailedError, match="it differs"):
        fold(MODEL, out=tmp_path / "out.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("model", "named", "message"),
    [
        (MODEL, {}, "say where the folded file goes: out"),
        (onnx.ModelProto(), {"out": "x.onnx"}, "out is for a model that is given by its path"),
        (b"model", {}, "not bytes"),
        (onnx.load(MODEL), {"options": FoldOptions()}, "it takes a factor"),
    ],
)
def test_what_cannot_be_folded(model: object, named: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        interop.fold(model, **named)


def test_a_graph_goes_in_and_out_with_its_sites() -> None:
    graph = gs.import_onnx(onnx.load(MODEL))
    folded, sites = fold_graph(graph, FoldOptions(factor=8))
    assert [site.status for site in sites] == ["folded"]
    check(gs.export_onnx(folded))


def test_a_second_time_folds_again_as_graphsurgeon_drops_the_metadata() -> None:
    graph = gs.import_onnx(onnx.load(MODEL))
    once, _ = fold_graph(graph, FoldOptions(factor=2))
    twice, sites = fold_graph(once, FoldOptions(factor=2))
    assert [site.status for site in sites] == ["folded"]
    check(gs.export_onnx(twice))


def test_something_else_is_no_graph() -> None:
    with pytest.raises(UsageError, match="onnx_graphsurgeon"):
        fold_graph(onnx.ModelProto(), FoldOptions(factor=8))
