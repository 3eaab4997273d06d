"""Records of a folded model may hold anything: they are shown, and change no verdict."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from msgspec import structs

from tests.folding import fold_model
from tests.reports.sample import passing
from tests.rewrite.guards.guarded import parsed
from widthfold_onnx.evidence.checks import verification_of
from widthfold_onnx.model.document import Document, Node
from widthfold_onnx.model.loader import load
from widthfold_onnx.model.proto.walk import all_nodes
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.options import DeliveryOptions, FoldOptions, Provider
from widthfold_onnx.reports import html
from widthfold_onnx.results import FoldReport
from widthfold_onnx.rewrite.record import (
    FOLD_KEY,
    MAX_NUMBER,
    MAX_TAPS,
    ORIGIN_KEY,
    UNREADABLE,
    read_fold,
    recorded_folds,
)

HEAD = '<ir_version: 8, opset_import: ["" : 17]>'
SAME = "pads = [1, 1, 1, 1]"
CONVS, OPEN = (
    parsed(
        f"""{HEAD} main (float[2, 3, 7, {width}] x) => (float[2, 3, 7, {width}] y) {{
          c = Conv <{SAME}> (x, u) r = Relu (c) y = Conv <{SAME}> (r, v) }}""",
        u=(5, 3, 3, 3),
        v=(3, 5, 3, 3),
    )
    for width in ("12", "W")
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
    "guarded": (OPEN, replace(WIDTH, input_shapes={"x": (2, 3, 7, 12)})),
    "products": (PRODUCTS, FoldOptions(factor=4)),
    "quantized": (QUANTIZED, WIDTH),
}
NUMBERS = (0, -1, 1, 3, 1.5, 1 << 19, 1 << 20, 1 << 40, 2**63 - 1, 2**70)
VALUES = (*NUMBERS, None, True, "\x1b[2J\n", [], [1], [None], [3, 4], [1] * 9, [[1]], {})


def folded(name: str) -> onnx.ModelProto:
    model, options = MODELS[name]
    result, sites = fold_model(model, options)
    assert all(site.status == "folded" for site in sites)
    return result


def records(model: onnx.ModelProto, *keys: str) -> list[onnx.StringStringEntryProto]:
    return [e for n in all_nodes(model.graph.node) for e in n.metadata_props if e.key in keys]


def shown(model: onnx.ModelProto) -> list[FoldReport]:
    return recorded_folds(Document(model, None, OPERATORS))


def report_of(text: str) -> FoldReport:
    """The text that is shown of a node with this record."""
    node = Node("", "Conv", [], name="site", metadata_props={FOLD_KEY: text})
    report = read_fold(node)
    assert report.node == "site"
    assert report.form
    return report


def places(record: Any, *path: str | int) -> Iterator[tuple[str | int, ...]]:
    """Paths to everything in a record."""
    if path:
        yield path
    if isinstance(record, (dict, list)):
        for key, inner in record.items() if isinstance(record, dict) else enumerate(record):
            yield from places(inner, *path, key)


def replaced(text: str, path: tuple[str | int, ...], value: object) -> str:
    record = json.loads(text)
    holder = record
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return json.dumps(record)


@pytest.mark.parametrize("name", MODELS)
def test_the_right_records_are_shown(name: str) -> None:
    model = folded(name)
    record = shown(model)
    assert len(record) == len(records(model, FOLD_KEY)) > 0
    assert all(fold.channels and " by 4, " in fold.form for fold in record)
    assert all(axis.taps for fold in record for axis in fold.axes)


@pytest.mark.parametrize("name", MODELS)
def test_a_record_of_anything_is_answered(name: str) -> None:
    (right, *_) = (entry.value for entry in records(folded(name), FOLD_KEY))
    assert report_of(right).form != UNREADABLE
    for path in places(json.loads(right)):
        for value in VALUES:
            report_of(replaced(right, path, value))


@pytest.mark.parametrize(
    "text",
    ["", "null", "{}", "NaN", "[" * 100_000, '{"x":' + "[" * 100_000, '{"axes":[]}', '"\\ud800"'],
)
def test_a_text_that_is_no_record_is_answered(text: str) -> None:
    model = folded("convs")
    for entry in records(model, FOLD_KEY):
        entry.value = text
    assert all(fold.form == UNREADABLE and not fold.axes for fold in shown(model))


FIELDS = ("in_tile", "out_tile", "in_length", "original_kernel", "kernel", "stride")
OF_TAPS = [("taps", 0, place) for place in range(4)]


@pytest.mark.parametrize("path", [*((name,) for name in FIELDS), *OF_TAPS])
def test_a_number_out_of_range_is_not_shown(path: tuple[str | int, ...]) -> None:
    (right, *_) = (entry.value for entry in records(folded("convs"), FOLD_KEY))
    for number in (-1, MAX_NUMBER + 1, 2**70):
        assert report_of(replaced(right, ("axes", 0, *path), number)).form == UNREADABLE
    assert report_of(replaced(right, ("axes", 0, *path), MAX_NUMBER)).axes


def test_a_text_or_a_list_of_any_kind_is_not_shown() -> None:
    (right, *_) = (entry.value for entry in records(folded("convs"), FOLD_KEY))
    for name in ("form", "channels"):
        assert report_of(replaced(right, (name,), "x" * 2001)).form == UNREADABLE
    assert report_of(replaced(right, ("axes", 0, "axis"), "\x1b[2J")).form == UNREADABLE
    taps = [[0] * 4] * (MAX_TAPS + 1)
    assert report_of(replaced(right, ("axes", 0, "taps"), taps)).form == UNREADABLE
    axes = json.loads(right)["axes"]
    assert report_of(replaced(right, ("axes",), axes * 5)).form == UNREADABLE


@pytest.mark.parametrize("number", [1, MAX_NUMBER])
def test_any_number_that_is_read_can_be_drawn(number: int) -> None:
    (right, *_) = (entry.value for entry in records(folded("convs"), FOLD_KEY))
    for blocked in (False, True):
        axis = {"axis": "rows", "blocked": blocked} | dict.fromkeys(FIELDS, number)
        axis["taps"] = [[number] * 4] * MAX_TAPS
        record = report_of(replaced(right, ("axes",), [axis]))
        assert record.axes
        assert len(html.page(structs.replace(passing(), folds=[record]))) < 3_000_000


def lost(entry: onnx.StringStringEntryProto) -> None:
    entry.key = "nothing"


def garbled(entry: onnx.StringStringEntryProto) -> None:
    entry.value = "{"


def exaggerated(entry: onnx.StringStringEntryProto) -> None:
    record = json.loads(entry.value)
    for axis in record["axes"]:
        axis["out_tile"] *= 3
    entry.value = json.dumps(record)


@pytest.mark.parametrize("change", [lost, garbled, exaggerated])
@pytest.mark.parametrize("name", MODELS)
def test_a_wrong_or_missing_record_changes_no_verdict(name: str, change: Any, tmp_path) -> None:
    model = folded(name)
    for entry in records(model, FOLD_KEY, ORIGIN_KEY):
        if entry.key == FOLD_KEY:
            change(entry)
    report = compared(name, model, tmp_path)
    assert (report.verdict, report.reasons) == ("pass", [])
    assert report.proof.verdict == "equal"


@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_wrong_weight_fails_with_and_without_records(is_recorded: bool, tmp_path: Path) -> None:
    model = folded("convs")
    (weight, *_) = (t for t in model.graph.initializer if len(t.dims) == 4)
    values = onnx.numpy_helper.to_array(weight).copy()
    values.flat[abs(values).argmax()] *= np.float32(1 + 2**-22)
    weight.CopyFrom(onnx.numpy_helper.from_array(values, weight.name))
    for entry in [] if is_recorded else records(model, FOLD_KEY, ORIGIN_KEY):
        lost(entry)
    report = compared("convs", model, tmp_path)
    assert (report.verdict, report.proof.verdict) == ("fail", "different")


def compared(name: str, model: onnx.ModelProto, folder: Path) -> Any:
    paths = folder / "a.onnx", folder / "b.onnx"
    for path, item in zip(paths, (MODELS[name][0], model), strict=True):
        onnx.save(item, path)
    options = DeliveryOptions(provider=Provider.CPU, seeds=1)
    return verification_of(*map(load, paths), options)
