"""What is written channel by channel is proved to be the original, before its folds are."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.evidence.test_regions import verdicts
from tests.plan.tool import conv
from tests.rewrite.channels import builder, by_channel, drop_key
from widthfold_onnx import AxisName, FoldOptions, Provider, VerifyOptions, fold_model, verify
from widthfold_onnx.errors import InvalidModelError
from widthfold_onnx.evidence import by_channel as module
from widthfold_onnx.evidence.by_channel import by_channel as made_again
from widthfold_onnx.evidence.by_channel import check_channels
from widthfold_onnx.model.graph import Document
from widthfold_onnx.results import ExactSite
from widthfold_onnx.rewrite.record import CHANNEL_KEY, FOLD_KEY

OPTIONS = VerifyOptions(provider=Provider.CPU)
BATCH = FoldOptions(factor=8, axis=AxisName.BATCH)


def quiet(line: str) -> None:
    pass


def proof(
    original: onnx.ModelProto, written: onnx.ModelProto, folder: Path | None = None
) -> list[ExactSite]:
    """The proof of the model before any fold; it runs where it makes a proof."""
    old, new = (
        Document(onnx.ModelProto.FromString(m.SerializeToString()), folder)
        for m in (original, written)
    )
    return check_channels(old, new, OPTIONS, quiet)


GEOMETRY = [
    {},
    {"bias": False},
    {"pads": [2, 0, 1, 3], "strides": [2, 3]},
    {"dilations": [2, 1]},
    {"auto_pad": "SAME_LOWER", "strides": [2, 1]},
    {"dtype": np.float16},
]


@pytest.mark.parametrize("opset", [7, 13, 18])
@pytest.mark.parametrize("given", GEOMETRY)
def test_one_conv_is_exact(given: dict[str, object], opset: int) -> None:
    model = conv((8, 3, 7, 11), (2, 3, 3, 5), **given)
    model.opset_import[0].version = opset
    (site,) = proof(model, by_channel(model))
    assert (site.node, site.verdict) == ("conv", "exact")
    assert site.reason == (
        "6 Convs of one channel hold its weight and bias, bit for bit, and are added up per "
        "output channel; runs on integers agree bit for bit"
    )
    assert (site.channels, site.fold) == ("3 -> 2, 6 times 1 -> 1", "Written channel by channel.")


def test_what_no_kernel_runs_is_proved_by_its_weights() -> None:
    model = conv((8, 3, 7, 11), (2, 3, 3, 5), dtype=np.float64)
    (site,) = proof(model, by_channel(model))
    assert site.verdict == "proved"
    assert "; not run on integers: " in site.reason


def net() -> onnx.ModelProto:
    """Three Convs; channels are joined for a MaxPool in between, and split again."""
    g = builder(8, 3, 7, 11)
    bounds = np.array(-3, np.float32), np.array(4, np.float32)
    first = g.op("Clip", g.conv("x", 2, [3, 3]), *bounds)
    value = g.op("PRelu", g.conv(first, 2, [1, 5]), np.array([[[3]]], np.float32))
    value = g.op("Mul", g.op("Sub", first, value), np.array([2], np.float32))
    g.constants["k2_2"] = np.array([2, -1], np.float32)
    pooled = g.op("MaxPool", value, kernel_shape=[3, 1])
    return g.model([g.op("Relu", g.conv(pooled, 3, [3, 1]))])


def test_all_that_goes_along_is_proved_and_so_are_the_folds(tmp_path: Path) -> None:
    model = net()
    written = by_channel(model)
    sites = proof(model, written)
    assert [(site.node, site.verdict) for site in sites] == [
        (f"conv{index}", "exact") for index in (0, 2, 7)
    ]
    folded, lines = fold_model(written, BATCH)
    assert {line.status for line in lines} == {"folded"}
    path = tmp_path / "a.onnx"
    onnx.save(model, path)
    found = verdicts(path, folded, tmp_path)
    assert set(found.values()) == {"exact"}
    assert found.keys() == {"conv0", "conv2", "conv7", *(line.node for line in lines)}


def test_only_what_was_written_so_is_proved_so(tmp_path: Path) -> None:
    model = net()
    written = by_channel(model, ["v2"])
    assert [site.node for site in proof(model, written)] == ["conv2"]
    source, sites = made_again(model, Document(written, None), None, OPTIONS, quiet)
    assert source == written
    assert [site.node for site in sites] == ["conv2"]


def test_a_model_of_which_nothing_was_written_so_is_its_own_source() -> None:
    model = net()
    folded, _ = fold_model(model, BATCH)
    source, sites = made_again(model, Document(folded, None), None, OPTIONS, quiet)
    assert source is model
    assert sites == []


def test_what_an_earlier_run_wrote_so_is_no_news(tmp_path: Path) -> None:
    """The original is written so as well, in part: only the rest is proved."""
    before = by_channel(net(), ["v2"])
    after = by_channel(before, ["v0"])
    assert [site.node for site in proof(before, after)] == ["conv0"]
    assert proof(before, before) == []
    folded, _ = fold_model(after, BATCH)
    onnx.save(before, tmp_path / "a.onnx")
    found = verdicts(tmp_path / "a.onnx", folded, tmp_path)
    assert set(found.values()) == {"exact"}
    assert "conv0" in found
    assert "conv2" not in found


def test_weights_in_files_and_old_ir_versions(tmp_path: Path) -> None:
    model = conv((8, 3, 7, 11), (2, 3, 3, 5))
    model.ir_version, model.opset_import[0].version = 3, 8
    for tensor in model.graph.initializer:
        kind = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        model.graph.input.append(kind)
    assert [site.verdict for site in proof(model, by_channel(model))] == ["exact"]
    path = tmp_path / "model.onnx"
    onnx.save(net(), path, save_as_external_data=True, location="m.data", size_threshold=0)
    stored = onnx.load(path, load_external_data=False)
    written = by_channel(stored, ["v0"], tmp_path)
    assert [site.verdict for site in proof(stored, written, tmp_path)] == ["exact"]


def test_a_body_may_read_the_joined_channels_and_no_single_one() -> None:
    g = builder(8, 3, 7, 11)
    value = g.conv("x", 2, [3, 3])
    last = g.op("Relu", value)
    g.nodes.append(helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0))
    g.nodes.append(helper.make_node("Cast", ["most"], ["c"], to=TensorProto.BOOL))
    bodies = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node(op, [value], [f"{op}_result"])],
            op,
            [],
            [helper.make_tensor_value_info(f"{op}_result", TensorProto.FLOAT, None)],
        )
        for name, op in (("then", "Abs"), ("else", "Neg"))
    }
    g.nodes.append(helper.make_node("If", ["c"], ["z"], "if", **bodies))
    model = g.model([last, "z"])
    written = by_channel(model)
    assert [site.verdict for site in proof(model, written)] == ["exact"]
    split = next(n for n in written.graph.node if n.op_type == "Relu").input[0]
    for attribute in next(n for n in written.graph.node if n.op_type == "If").attribute:
        attribute.g.node[0].input[0] = split
    (site,) = proof(model, written)
    assert site.verdict == "different"
    assert "something else reads a channel" in site.reason


@pytest.mark.parametrize("channels", [1, 2])
def test_results_that_change_places_are_found(channels: int) -> None:
    """Two values of the same shape, each under the name of the other."""
    g = builder(8, 3, 7, 11)
    names = [g.conv("x", channels, [3, 3]), g.conv("x", channels, [1, 3])]
    model = g.model(names)
    written = by_channel(model)
    assert [site.verdict for site in proof(model, written)] == ["exact", "exact"]
    for node in written.graph.node:
        if node.output[0] in names:
            node.output[0] = names[1 - names.index(node.output[0])]
    (site,) = proof(model, written)
    assert site.verdict == "different"


def test_a_constant_that_differs_per_channel_is_none_for_a_channel() -> None:
    g = builder(8, 3, 7, 11)
    model = g.model([g.op("Mul", g.conv("x", 2, [3, 3]), np.array([[[3]]], np.float32))])
    written = by_channel(model)
    for proto in (model, written):
        tensor = next(t for t in proto.graph.initializer if t.name == "k1_1")
        tensor.CopyFrom(onnx.numpy_helper.from_array(np.float32([[[3]], [[5]]]), "k1_1"))
    (site,) = proof(model, written)
    assert site.verdict == "different"
    assert "its constant may differ per channel" in site.reason


def test_integers_that_differ_are_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    model = conv((8, 3, 7, 11), (2, 3, 3, 5))
    monkeypatch.setattr(module, "probe_channels", lambda *arguments: "1 of 2 integers differ")
    (site,) = proof(model, by_channel(model))
    assert (site.verdict, site.reason) == ("different", "1 of 2 integers differ")


# ---------------------------------------------------------------- faults in what was folded


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, onnx.ModelProto]:
    path = tmp_path_factory.mktemp("pair") / "a.onnx"
    onnx.save(net(), path)
    return path, fold_model(by_channel(net()), BATCH)[0]


def folded_conv(model: onnx.ModelProto, name: str = "conv2/channel_1_of_0") -> onnx.NodeProto:
    return next(node for node in model.graph.node if node.name == name)


def one_weight(model: onnx.ModelProto) -> None:
    name = folded_conv(model).input[1]
    tensor = next(t for t in model.graph.initializer if t.name == name)
    array = onnx.numpy_helper.to_array(tensor).copy()
    array.flat[-1] += 1
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, name))


def weight_of_another(model: onnx.ModelProto) -> None:
    folded_conv(model).input[1] = folded_conv(model, "conv2/channel_1_of_1").input[1]


def record_of_another_fold(model: onnx.ModelProto) -> None:
    for entry in folded_conv(model).metadata_props:
        if entry.key == FOLD_KEY:
            entry.value = json.dumps({**json.loads(entry.value), "batch": 4})


def origin_of_another(model: onnx.ModelProto) -> None:
    for entry in folded_conv(model).metadata_props:
        if entry.key == "widthfold.origin":
            entry.value = "conv2/channel_0_of_0"


def sum_of_others(model: onnx.ModelProto) -> None:
    folded = next(n for n in model.graph.node if n.name.startswith("conv2/channel_1_"))
    total = next(n for n in model.graph.node if n.op_type == "Add" and folded.output[0] in n.input)
    total.input[1] = folded_conv(model, "conv2/channel_0_of_1").output[0]


def test_other_joining_is_a_change_beside_the_folds_that_values_show(pair, tmp_path: Path) -> None:
    path, folded = pair
    changed = onnx.ModelProto.FromString(folded.SerializeToString())
    node = next(node for node in changed.graph.node if node.op_type == "Concat")
    node.input[0], node.input[1] = node.input[1], node.input[0]
    out = tmp_path / "b.onnx"
    onnx.save(changed, out)
    report = verify(path, out, VerifyOptions(thorough=False, timing=False, seeds=1))
    assert report.verdict == "fail"
    assert any("the models differ outside the folds" in line for line in report.reasons)


def without_keys(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        drop_key(node, CHANNEL_KEY)


def keys_of_nothing(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        for entry in node.metadata_props:
            if entry.key == CHANNEL_KEY:
                entry.value = '{"of":"nowhere","channel":0}'


@pytest.mark.parametrize(
    "fault",
    [
        *(one_weight, weight_of_another, record_of_another_fold, origin_of_another),
        *(sum_of_others, without_keys, keys_of_nothing),
    ],
)
def test_a_fault_in_what_was_folded_is_found(pair, fault, tmp_path: Path) -> None:
    path, folded = pair
    changed = onnx.ModelProto.FromString(folded.SerializeToString())
    fault(changed)
    assert changed != folded
    assert "different" in verdicts(path, changed, tmp_path).values()


def test_one_lost_key_is_a_change_and_no_fault_of_the_others(pair, tmp_path: Path) -> None:
    path, folded = pair
    changed = onnx.ModelProto.FromString(folded.SerializeToString())
    drop_key(folded_conv(changed), CHANNEL_KEY)
    assert set(verdicts(path, changed, tmp_path).values()) == {"exact"}


@pytest.mark.parametrize(
    "text", ["", "null", "[]", '{"of":1,"channel":0}', '{"of":"v0"}', "[" * 99999]
)
def test_a_key_that_cannot_be_read_is_an_invalid_model(pair, text: str, tmp_path: Path) -> None:
    path, folded = pair
    changed = onnx.ModelProto.FromString(folded.SerializeToString())
    for entry in folded_conv(changed).metadata_props:
        if entry.key == CHANNEL_KEY:
            entry.value = text
    with pytest.raises(InvalidModelError, match=r"^widthfold\.channel cannot be read: "):
        verdicts(path, changed, tmp_path)
