"""A Pad with negative numbers is a Slice and a Pad, to the proof as well."""

from __future__ import annotations

import onnx
import pytest

from tests.rewrite.proved import proof


def model(nodes: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 18]> g (float[2, 5, 7] x) => (float[2, 5, 7] y)
        <float two = {{2}}, int64[1] last = {{2}}, int64[1] one = {{1}}, int64[1] end = {{7}},
        int64[2] cut = {{-1, 1}}, int64[2] left = {{1, -1}}, int64[2] more = {{0, 1}},
        int64[6] all = {{0, 0, -1, 0, 0, 1}}> {{ {nodes} }}"""
    )


SLICED = model("s = Slice(x, one, end, last) y = Pad(s, more, two, last)")


@pytest.mark.parametrize(
    ("pad", "verdict"),
    [
        ("y = Pad(x, all, two)", "equal"),
        ("y = Pad(x, cut, two, last)", "equal"),
        ("y = Pad(x, left, two, last)", "different"),
    ],
)
def test_it_cuts_where_it_is_negative(pad: str, verdict: str) -> None:
    assert proof(SLICED, model(pad)).verdict == verdict
    assert proof(model(pad), SLICED).verdict == verdict
