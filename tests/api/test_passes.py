"""The fold as a pass of onnx_ir, beside passes of others."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir  # noqa: TID251 - hands models to the pass
import onnx_ir.passes.common as common  # noqa: TID251 - runs beside the pass
import onnxruntime as ort  # noqa: TID251 - runs what came back
import onnxscript.optimizer
import onnxscript.rewriter
import onnxscript.rewriter.rules.common as rules
import pytest

from tests.running import LEVELS, opened
from tests.shared import ROOT
from widthfold_onnx import CheckFailedError, WidthFold
from widthfold_onnx.evidence.exact_kernels import with_exact_products
from widthfold_onnx.rewrite.rewriting import Rewriting

MODELS = ROOT / "models"
BRANCHES = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1,1,29,32] x, bool c) => (float y)
    <float[3,1,5,1] k = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15}>
    {
      y = If (c) <
        then_branch = t () => (float[1,3,25,32] a) { a = Conv (x, k) },
        else_branch = e () => (float[1,3,25,32] b) { d = Neg (x)  b = Conv (d, k) }
      >
    }"""


def pitch_cnn() -> ir.Model:
    return ir.load(MODELS / "pitch_cnn.onnx")


def outputs(model: ir.Model, seed: int = 0) -> list[np.ndarray]:
    whole = ir.external_data.load_to_model(model.clone())
    # Where kernels of 8 bits saturate, other products saturate after a pass than before.
    session = opened(with_exact_products(ir.to_proto(whole)), LEVELS[1])
    draws = np.random.default_rng(seed)
    feeds = {}
    for port in session.get_inputs():
        shape = [extent if isinstance(extent, int) else 2 for extent in port.shape]
        data = draws.integers(-3, 4, shape).astype(np.float32)
        feeds[port.name] = np.array(seed % 2 == 0) if "bool" in port.type else data
    return session.run(None, feeds)


def test_it_returns_a_new_model_and_says_that_it_is_another() -> None:
    model = pitch_cnn()
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    result = WidthFold(factor=4)(model)
    assert result.modified
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before
    widest = max(v.const_value.shape[0] for v in result.model.graph.initializers.values())
    assert widest > max(v.const_value.shape[0] for v in model.graph.initializers.values())
    for ours, theirs in zip(outputs(result.model), outputs(model), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())


def test_a_second_run_modifies_nothing() -> None:
    once = WidthFold()(pitch_cnn())
    twice = WidthFold()(once)
    assert not twice.modified
    assert twice.model is not once.model
    assert ir.to_proto(twice.model) == ir.to_proto(once.model)


def test_a_pass_manager_ends_when_nothing_more_is_folded() -> None:
    result = ir.passes.PassManager([WidthFold(), common.TopologicalSortPass()], steps=9)(
        pitch_cnn()
    )
    assert result.modified


def test_layers_in_branches_are_folded() -> None:
    model = ir.from_proto(onnx.parser.parse_model(BRANCHES))
    result = WidthFold(factor=2)(model)
    assert result.modified
    (choice,) = result.model.graph
    for name in ("then_branch", "else_branch"):
        (conv,) = [n for n in choice.attributes[name].as_graph() if n.op_type == "Conv"]
        assert conv.inputs[0].shape is None or conv.inputs[1].const_value.shape[0] == 6
    for seed in (0, 1):
        np.testing.assert_array_equal(outputs(result.model, seed), outputs(model, seed))


def test_what_stays_keeps_its_analysis_and_shares_its_tensors() -> None:
    model = pitch_cnn()
    relu = next(node for node in model.graph if node.op_type == "Relu")
    relu.meta["seen"] = 7
    model.graph.inputs[0].meta["unit"] = "Hz"
    model.meta["from"] = "here"
    model.graph.initializers["spare"] = spare = ir.val(
        "spare", const_value=ir.tensor(np.arange(3), name="spare")
    )
    model.graph.outputs.append(spare)
    result = WidthFold(factor=2, nodes=("*head*",)).call(model).model
    again = {node.outputs[0].name: node for node in result.graph}
    assert again[relu.outputs[0].name].meta == {"seen": 7}
    assert result.graph.inputs[0].meta == {"unit": "Hz"}
    assert result.meta == {"from": "here"}
    assert result.graph.initializers["spare"].const_value is spare.const_value


def test_a_node_that_gets_attributes_keeps_its_analysis() -> None:
    """Without a move behind it the folded node has the output of the old one."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[1,1,8,16] x) => (float[1,3,4,8] y) <float[3,1,2,2] w = {1,2,3,4,5,6,7,8,9,1,2,3}>
        { y = Conv <strides = [2, 2]> (x, w) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    model.graph[0].meta["seen"] = 7
    result = WidthFold(form="strides")(model)
    assert result.modified
    assert "dilations" in result.model.graph[-1].attributes
    assert result.model.graph[-1].meta == {"seen": 7}
    np.testing.assert_array_equal(outputs(result.model), outputs(model))


def test_a_function_that_stays_keeps_its_analysis() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "here" : 1]>
        g (float[1,1,8,16] x) => (float[1,1,8,16] y) <float[1,1,1,1] w = {2}>
        { c = Conv (x, w)  y = here.act (c) }
        <domain: "here", opset_import: ["" : 17]> act (a) => (b) { b = Relu (a) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    (function,) = model.functions.values()
    function[0].meta["seen"] = function.graph.meta["seen"] = 7
    result = WidthFold()(model)
    assert result.modified
    (function,) = result.model.functions.values()
    assert function[0].meta == function.graph.meta == {"seen": 7}


def test_tensors_of_nodes_in_a_file(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[1,1,29,32] x) => (float[1,3,25,32] y, float[1,1,29,32] z) {
            k = Constant <value = float[3,1,5,1] {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6}> ()
            b = Constant <value = float[1] {2}> ()
            y = Conv (x, k)
            z = Add (x, b)
        }"""
    proto = onnx.parser.parse_model(text)
    for tensor in (node.attribute[0].t for node in proto.graph.node[:2]):
        tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor)))
    where = tmp_path / "m.onnx"
    saved = {"save_as_external_data": True, "size_threshold": 0, "convert_attribute": True}
    onnx.save(proto, where, location="w", **saved)
    result = WidthFold(factor=2)(ir.load(where))
    assert result.modified
    (constant,) = [node for node in result.model.graph if node.op_type == "Constant"]
    assert constant.attributes["value"].as_tensor().numpy() == [2]


def test_weights_in_files_of_two_folders(tmp_path: Path) -> None:
    models = []
    for name in ("a", "b"):
        shutil.copy(MODELS / "paper_conv.onnx", tmp_path / f"{name}.onnx")
        proto = onnx.load(tmp_path / f"{name}.onnx")
        (tmp_path / name).mkdir()
        where = tmp_path / name / "m.onnx"
        onnx.save(proto, where, save_as_external_data=True, size_threshold=0, location="w")
        models.append(ir.load(where))
    first, other = models
    expected = outputs(first)
    for value in first.graph.initializers.values():
        if value is not None and len(value.const_value.shape) == 1:
            value.const_value = other.graph.initializers[value.name].const_value
    result = WidthFold(factor=8)(first)
    assert result.modified
    np.testing.assert_allclose(outputs(result.model), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "passes",
    [
        pytest.param(lambda m: onnxscript.optimizer.optimize(m), id="optimizer"),
        pytest.param(lambda m: onnxscript.rewriter.rewrite(m), id="rewriter"),
        pytest.param(lambda m: common.ShapeInferencePass()(m).model, id="shapes"),
        pytest.param(lambda m: common.CommonSubexpressionEliminationPass()(m).model, id="cse"),
    ],
)
@pytest.mark.parametrize("name", ["pitch_cnn", "luma_sr", "quantized_cnn"])
def test_other_passes_before_and_after(
    name: str, passes: Callable[[ir.Model], ir.Model | None]
) -> None:
    model = ir.load(MODELS / f"{name}.onnx")
    expected = outputs(model)
    before = passes(model.clone()) or model
    folded = WidthFold(factor=4)(before)
    assert folded.modified
    after = passes(folded.model) or folded.model
    common.CheckerPass()(after)
    for ours, theirs in zip(outputs(after), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())


def test_a_wrong_fold_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    carry_out = Rewriting.carry_out

    def off_by_one(rewriting: Rewriting) -> onnx.ModelProto:
        folded = carry_out(rewriting)
        (weight,) = [t for t in folded.graph.initializer if t.name.endswith("/widthfold")][:1]
        numbers = onnx.numpy_helper.to_array(weight).copy()
        numbers.flat[0] += 1
        weight.CopyFrom(onnx.numpy_helper.from_array(numbers, weight.name))
        return folded

    monkeypatch.setattr(Rewriting, "carry_out", off_by_one)
    with pytest.raises(CheckFailedError, match="proof: different"):
        WidthFold()(pitch_cnn())
    WidthFold(no_verify=True)(pitch_cnn())


@pytest.fixture
def torch() -> ModuleType:
    return pytest.importorskip(
        "torch",
        reason="models of torch are NOT tested: it is not installed; scripts/nightly makes an "
        "environment with it",
    )


def cnn(torch: ModuleType) -> Any:
    """Few channels, in layers of several kinds, the last one on the rows of an image."""
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(1, 3, (5, 1), padding=(2, 0)), nn.BatchNorm2d(3), nn.ReLU(),
        nn.Conv2d(3, 3, 3, padding=1, groups=3), nn.Conv2d(3, 2, 1), nn.SiLU(),
        nn.ConvTranspose2d(2, 4, 2, stride=2), nn.Sigmoid(), nn.Linear(32, 5),
    ).eval()  # fmt: skip


def choosing(torch: ModuleType) -> Any:
    """A layer in each branch of an If."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = torch.nn.Conv2d(1, 3, 3, padding=1)
            self.other = torch.nn.Conv2d(1, 3, (5, 1), padding=(2, 0))

        def forward(self, x: Any) -> Any:
            return torch.cond(x.sum() > 0, self.one, self.other, (x,))

    return Net().eval()


@pytest.mark.parametrize("is_open", [False, True], ids=["fixed", "open"])
@pytest.mark.parametrize("build", [cnn, choosing])
def test_the_model_of_torch(
    torch: ModuleType, build: Callable[[ModuleType], Any], is_open: bool
) -> None:
    """The pass runs between foreign passes, on a model that torch has not optimized."""
    torch.manual_seed(0)
    net = build(torch)
    sizes = ({0: torch.export.Dim("n")},) if is_open else None
    x = torch.randn(2, 1, 16, 16)
    program = torch.onnx.export(
        net, (x,), dynamo=True, dynamic_shapes=sizes, optimize=False, verbose=False
    )
    model = program.model
    before = ir.to_proto(model).SerializeToString(deterministic=True)

    folded = WidthFold(factor=4)(model)
    assert folded.modified
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before
    assert not WidthFold(factor=4)(folded.model).modified
    for ours, theirs in zip(
        [*folded.model.graph.inputs, *folded.model.graph.outputs],
        [*model.graph.inputs, *model.graph.outputs],
        strict=True,
    ):
        assert (ours.name, ours.dtype, ours.shape) == (theirs.name, theirs.dtype, theirs.shape)
        assert ours.metadata_props == theirs.metadata_props
    assert folded.model.graph.metadata_props == model.graph.metadata_props
    again = {node.name: node for node in ir.traversal.RecursiveGraphIterator(folded.model.graph)}
    linear = 0
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.op_type in ("Conv", "ConvTranspose", "MatMul"):
            linear += 1
            assert node.metadata_props.items() <= again[node.name].metadata_props.items()
            assert "widthfold.fold" in again[node.name].metadata_props
    assert linear == len([n for n in again.values() if "widthfold.fold" in n.metadata_props])

    result = ir.passes.Sequential(
        common.InlinePass(),
        onnxscript.rewriter.RewritePass([rules.fuse_batchnorm_into_conv_rule]),
        WidthFold(factor=4),
        onnxscript.rewriter.RewritePass([rules.no_op_transpose_rule]),
        common.ShapeInferencePass(),
        common.CommonSubexpressionEliminationPass(),
        common.RemoveUnusedNodesPass(),
        common.CheckerPass(),
    )(model)
    assert result.modified
    program.model = result.model
    proto = ir.to_proto(ir.external_data.load_to_model(program.model))
    session = ort.InferenceSession(proto.SerializeToString())
    for data in (x, -x):
        (ours,) = session.run(None, {session.get_inputs()[0].name: data.numpy()})
        theirs = net(data).detach().numpy()
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())
