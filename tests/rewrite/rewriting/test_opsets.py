"""Every operator set keeps its own forms, and open dimensions run at every size."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort  # noqa: TID251 - the tests run what the package made
import pytest

from tests.folding import fold_model
from tests.model.refolded import B, W, data, parsed, refolded
from tests.shared import ROOT
from widthfold_onnx.options import FoldOptions


@pytest.mark.parametrize("opset", range(7, 26))
def test_every_opset_keeps_its_own_forms(opset):
    model = parsed(
        "(float[1, 2, 9, 9] x) => (float[1, 3, 9, 9] y) { [c] y = Conv <PADS> (x, w, b) }",
        {"w": W, "b": B},
        opset,
        ir=8 if opset < 21 else 10,
    )
    for axis in (2, 3):
        options = FoldOptions(factor=4, axis=axis, ragged=True)
        result, codes = refolded(model, {"x": data(1, 2, 9, 9)}, options=options)
        assert codes == {"c": "folded"}
        assert result.opset_import == model.opset_import
        onnx.checker.check_model(result, full_check=True)
        forms = {node.op_type: len(node.input) for node in result.graph.node}
        assert {"Pad", "Slice", "Reshape", "Conv"} <= forms.keys()
        assert forms["Pad"] == (1 if opset < 11 else 2)
        assert forms["Slice"] == (1 if opset < 10 else 4)


def test_an_old_model_declares_its_new_constants():
    model = parsed(
        "(float[1, 2, 8, 8] x, float[3, 2, 3, 3] w) => (float[1, 3, 8, 8] y) {"
        "[c] y = Conv <PADS> (x, w) }",
        {"w": W},
        opset=8,
        ir=3,
    )
    result, codes = refolded(model)
    assert codes == {"c": "folded"}
    assert {t.name for t in result.graph.initializer} <= {v.name for v in result.graph.input}


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("ragged", [False, True])
def test_a_symbolic_batch_runs_at_every_size(ragged, layout):
    width = 9 if ragged else 8
    model = parsed(
        f"(float[N, 2, 5, {width}] x) => (float[N, 3, 5, {width}] y) {{"
        "[c] y = Conv <PADS> (x, w, b) }",
        {"w": W, "b": B},
    )
    options = FoldOptions(factor=4, axis=3, ragged=ragged, layout=layout)
    feeds = [{"x": data(batch, 2, 5, width)} for batch in (0, 1, 2, 7)]
    _, codes = refolded(model, *feeds, options=options)
    assert codes == {"c": "folded"}


def test_a_symbolic_batch_and_height_run_at_every_size_or_are_refused():
    model = parsed(
        "(float[N, 2, h, 8] x) => (float[N, 3, h, 8] y) { [c] y = Conv <PADS> (x, w) }", {"w": W}
    )
    feeds = [{"x": data(n, 2, h, 8)} for n in (1, 2) for h in (1, 4, 5)]
    _, codes = refolded(model, *feeds, options=FoldOptions(factor=4, axis=3))
    assert codes["c"] in ("folded", "several-unknown-extents")
    source = parsed(
        "(float[2, 2, h, 8] x) => (float[2, 3, h, 8] y) { [c] y = Conv <PADS> (x, w) }", {"w": W}
    )
    feeds = [{"x": data(2, 2, h, 8)} for h in (1, 4, 5)]
    _, codes = refolded(source, *feeds, options=FoldOptions(factor=4, axis=3))
    assert codes == {"c": "folded"}


def test_the_long_spelling_of_the_default_domain_is_understood() -> None:
    """The runtime loads it; onnx's own checker does not."""
    model = onnx.load(ROOT / "models" / "paper_conv.onnx")
    model.opset_import[0].domain = "ai.onnx"
    for node in model.graph.node:
        node.domain = "ai.onnx"
    folded, (site,) = fold_model(model, FoldOptions(factor=8))
    assert site.status == "folded"
    assert folded.opset_import == model.opset_import
    x = np.random.default_rng(3).standard_normal((1, 1, 32, 64)).astype(np.float32)
    name = model.graph.input[0].name
    before, after = (
        ort.InferenceSession(m.SerializeToString()).run(None, {name: x}) for m in (model, folded)
    )
    np.testing.assert_allclose(after[0], before[0], rtol=0, atol=1e-6)
