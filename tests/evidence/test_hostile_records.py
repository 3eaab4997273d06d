"""What a folded model says of itself may be anything: the proof answers, in words of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.cli.tool import widthfold
from tests.rewrite.guarded import parsed
from widthfold_onnx import FoldOptions, NonFinite, Provider, VerifyOptions, fold_model
from widthfold_onnx.evidence.exact import probe_sites
from widthfold_onnx.model.walk import all_nodes
from widthfold_onnx.results import ExactSite
from widthfold_onnx.rewrite.conditions import GUARD_KEY
from widthfold_onnx.rewrite.record import FOLD_KEY, STATE_KEY

HEAD = '<ir_version: 8, opset_import: ["" : 17]>'
SAME = "pads = [1, 1, 1, 1]"
CONVS = parsed(
    f"""{HEAD} main (float[2, 3, 7, 12] x) => (float[2, 3, 7, 12] y) {{
      c = Conv <{SAME}> (x, u) r = Relu (c) y = Conv <{SAME}> (r, v) }}""",
    u=(5, 3, 3, 3),
    v=(3, 5, 3, 3),
)
PRODUCTS = parsed(
    f"""{HEAD} main (float[2, 12, 3] x) => (float[2, 12, 2] y) {{
      c = MatMul (x, u) r = Relu (c) y = MatMul (r, v) }}""",
    u=(3, 5),
    v=(5, 2),
)
QUANTIZED = onnx.parser.parse_model(
    f"""{HEAD} main (float[1, 2, 7, 12] x) => (float[1, 2, 7, 12] y)
    <float s = {{0.5}}, uint8 z = {{3}}, int8 o = {{0}}, int8[2, 2, 1, 1] p = {{1, 2, 3, 4}}> {{
      q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) w = DequantizeLinear (p, s, o)
      y = Conv (d, w) }}"""
)
WIDTH = FoldOptions(factor=4, axis="width")
MODELS = {
    "convs": (CONVS, WIDTH),
    "guarded": (CONVS, FoldOptions(factor=4, axis="width", nonfinite=NonFinite.GUARD)),
    "products": (PRODUCTS, FoldOptions(factor=4)),
    "quantized": (QUANTIZED, WIDTH),
}


def folded(name: str) -> onnx.ModelProto:
    model, options = MODELS[name]
    result, sites = fold_model(model, options)
    assert all(site.status == "folded" for site in sites)
    return result


def records(model: onnx.ModelProto, *keys: str) -> list[onnx.StringStringEntryProto]:
    return [e for n in all_nodes(model.graph.node) for e in n.metadata_props if e.key in keys]


def proof(name: str, model: onnx.ModelProto, folder: Path) -> list[ExactSite]:
    paths = folder / "a.onnx", folder / "b.onnx"
    for path, item in zip(paths, (MODELS[name][0], model), strict=True):
        onnx.save(item, path)
    return probe_sites(*paths, VerifyOptions(provider=Provider.CPU), lambda line: None)[0]


def leaves(found: Any, *path: str | int) -> Iterator[tuple[str | int, ...]]:
    """Paths to the whole numbers of a record."""
    if isinstance(found, (dict, list)):
        for key, inner in found.items() if isinstance(found, dict) else enumerate(found):
            yield from leaves(inner, *path, key)
    elif type(found) is int:
        yield path


def replaced(text: str, path: tuple[str | int, ...], value: object) -> str:
    record = json.loads(text)
    holder = record
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return json.dumps(record)


@pytest.mark.parametrize("name", MODELS)
def test_no_number_of_a_record_is_out_of_range(name: str, tmp_path: Path) -> None:
    model = folded(name)
    for entry in records(model, FOLD_KEY, STATE_KEY):
        right = entry.value
        for path in leaves(json.loads(right)):
            for value in (-1, 1.5):
                entry.value = replaced(right, path, value)
                wrong = [s.reason for s in proof(name, model, tmp_path) if s.verdict == "different"]
                assert any(f"{entry.key} cannot be read: Expected `int" in why for why in wrong)
        entry.value = right


@pytest.mark.parametrize("name", MODELS)
def test_a_record_of_any_size_is_answered(name: str, tmp_path: Path) -> None:
    """Whatever number stands there: it is the right one, refuted, or too much for a proof."""
    model = folded(name)
    for entry in records(model, FOLD_KEY, STATE_KEY):
        right = entry.value
        for path in leaves(json.loads(right)):
            if path == ("lift",) or (path == ("factor",) and name != "products"):
                continue  # 0 or 1; told to people only
            for value in (2**40, 2**63 - 1):
                entry.value = replaced(right, path, value)
                verdicts = {site.verdict for site in proof(name, model, tmp_path)}
                assert verdicts & {"different", "skipped"}, (path, value)
        entry.value = right


@pytest.mark.parametrize("shapes", [[], [[]], [[1, 2, 7, 12], [1, 2, 7, 12]], [[1, 2, 7]]])
@pytest.mark.parametrize("name", MODELS)
def test_other_extents_than_those_of_the_outputs(name: str, shapes: list, tmp_path: Path) -> None:
    model = folded(name)
    for entry in records(model, STATE_KEY):
        right = entry.value
        entry.value = json.dumps({**json.loads(right), "shapes": shapes})
        assert "different" in {site.verdict for site in proof(name, model, tmp_path)}
        entry.value = right


@pytest.mark.parametrize(
    "told",
    [
        lambda shape: shape.astype(np.float32),
        lambda shape: shape[None],
        lambda shape: shape[:0],
        lambda shape: shape.astype(bool),
        lambda shape: np.full_like(shape, 2**62),
    ],
    ids=["floats", "two axes", "nothing", "truths", "too many"],
)
@pytest.mark.parametrize("name", ["convs", "products", "quantized"])
def test_a_move_that_is_told_nonsense(name: str, told: Any, tmp_path: Path) -> None:
    model = folded(name)
    shapes = [t for t in model.graph.initializer if "reshape" in t.name]
    assert shapes
    for tensor in shapes:
        right = numpy_helper.to_array(tensor)
        tensor.CopyFrom(numpy_helper.from_array(told(right), tensor.name))
        assert "different" in {site.verdict for site in proof(name, model, tmp_path)}
        tensor.CopyFrom(numpy_helper.from_array(right, tensor.name))


def test_verify_says_it_in_one_line(tmp_path: Path) -> None:
    model = folded("guarded")
    entry = records(model, FOLD_KEY)[0]
    entry.value = replaced(entry.value, ("axes", 1, "out_digits"), -4)
    proof_files = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(CONVS, proof_files[0])
    onnx.save(model, proof_files[1])
    flags = ("--provider", "cpu", "--seeds", "1", "--truth-budget", "0", "--no-timing")
    run = widthfold("verify", *proof_files, *flags)
    assert run.code == 1
    assert "widthfold.fold cannot be read: Expected `int` >= 1 - at `$.axes[1].out_digits`" in (
        " ".join(run.out.split())
    )


def test_a_condition_that_repeats_itself_is_read_once(tmp_path: Path) -> None:
    """An And of itself, 60 levels deep, says what one test says."""
    model = folded("guarded")
    (guard,) = (node for node in model.graph.node if node.op_type == "If")
    place = list(model.graph.node).index(guard)
    for level in range(60):
        deeper = onnx.helper.make_node("And", [guard.input[0]] * 2, [f"level{level}"])
        deeper.metadata_props.add(key=GUARD_KEY, value="")
        guard.input[0] = f"level{level}"
        model.graph.node.insert(place + level, deeper)
        guard = model.graph.node[place + level + 1]
    assert {site.verdict for site in proof("guarded", model, tmp_path)} == {"exact"}


def test_a_condition_on_texts(tmp_path: Path) -> None:
    model = folded("guarded")
    (bound,) = (node for node in model.graph.node if node.op_type == "Constant")
    bound.attribute[0].t.CopyFrom(numpy_helper.from_array(np.array("1e9", object)))
    reasons = [s.reason for s in proof("guarded", model, tmp_path) if s.verdict == "different"]
    assert reasons == ["its condition compares with something that is no number"]


@pytest.mark.parametrize("name", ["convs", "guarded"])
def test_digits_that_no_memory_holds(name: str, tmp_path: Path) -> None:
    model = folded(name)
    for entry in records(model, FOLD_KEY):
        entry.value = replaced(entry.value, ("axes", 1, "out_digits"), 1 << 28)
    found = proof(name, model, tmp_path)
    assert {site.verdict for site in found} == {"skipped"}
    assert {site.reason for site in found} == {"the probe would need more than 268435456 elements"}


def test_an_operator_that_is_never_folded(tmp_path: Path) -> None:
    model = folded("products")
    (first, _) = (node for node in model.graph.node if node.op_type == "MatMul")
    first.op_type = "Max"
    (found,) = (site for site in proof("products", model, tmp_path) if site.verdict == "different")
    assert found.reason == "the original has no such node"


def test_pads_that_no_memory_holds(tmp_path: Path) -> None:
    model = folded("convs")
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "pads":
                attribute.ints[0] = 1 << 40
    (found,) = {(site.verdict, site.reason) for site in proof("convs", model, tmp_path)}
    assert found == ("skipped", "the probe would need more than 268435456 elements")


def test_a_pad_that_no_memory_holds(tmp_path: Path) -> None:
    plain = parsed(
        f"{HEAD} main (float[1, 3, 7, 11] x) => (float[1, 5, 7, 11] y) "
        f"{{ y = Conv <{SAME}> (x, w) }}",
        w=(5, 3, 3, 3),
    )
    model, _ = fold_model(plain, replace(WIDTH, ragged=True))
    (pads,) = (t for t in model.graph.initializer if "pad" in t.name)
    right = numpy_helper.to_array(pads)
    assert right.sum() == 1
    pads.CopyFrom(numpy_helper.from_array(right << 40, pads.name))
    paths = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(plain, paths[0])
    onnx.save(model, paths[1])
    (site,), _ = probe_sites(*paths, VerifyOptions(provider=Provider.CPU), lambda line: None)
    assert site.verdict == "skipped"


def test_the_other_spelling_of_the_domain_is_no_fault(tmp_path: Path) -> None:
    model = folded("convs")
    model.opset_import.append(onnx.helper.make_opsetid("ai.onnx", 17))
    del model.opset_import[0]
    for node in all_nodes(model.graph.node):
        node.domain = "ai.onnx"
    assert {site.verdict for site in proof("convs", model, tmp_path)} == {"exact"}


def test_a_record_on_an_op_of_a_guard_is_a_finding(tmp_path: Path) -> None:
    model = folded("guarded")
    nodes = list(all_nodes(model.graph.node))
    text = next(e.value for n in nodes for e in n.metadata_props if e.key == FOLD_KEY)
    relu = next(n for n in nodes if n.op_type == "Relu" and n.metadata_props)
    relu.metadata_props.add(key=FOLD_KEY, value=text)
    found = proof("guarded", model, tmp_path)
    assert {site.reason for site in found if site.verdict == "different"} == {
        "the original has no such node",
        "the original has no such linear node",
    }
