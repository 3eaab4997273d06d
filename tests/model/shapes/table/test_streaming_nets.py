"""Nets as torch exports them for streams: shapes that come out of index arithmetic."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest

from tests.folding import fold_model
from tests.model.shapes.facts import check
from tests.model.shapes.shaped import parsed, shape
from widthfold_onnx.options import FoldOptions

UNFOLD = """
    size = Shape (padded)
    height = Gather (size, k2)
    width = Gather (size, k3)
    rows1 = Sub (height, k2)
    columns1 = Sub (width, k2)
    rows2 = Range (k0, rows1, k1)
    columns2 = Range (k0, columns1, k2)
    rows3 = Unsqueeze (rows2, v0)
    columns3 = Unsqueeze (columns2, v0)
    taps = Range (k0, k3, k1)
    taps1 = Unsqueeze (taps, v0)
    taps2 = Reshape (taps1, upright)
    rows = Add (rows3, taps2)
    columns = Add (columns3, taps2)
    cut1 = Gather <axis = 2> (padded, rows)
    cut2 = Gather <axis = 4> (cut1, columns)
    cut = Transpose <perm = [0, 1, 2, 4, 3, 5]> (cut2)
    batch = Gather (size, k0)
    channels = Gather (size, k1)
    windows = Mul (channels, k9)
    batch1 = Unsqueeze (batch, v0)
    windows1 = Unsqueeze (windows, v0)
    flat = Concat <axis = 0> (batch1, windows1, minus)
    unfolded = Reshape (cut, flat)
"""
"""Unfold of 3x3 windows at strides 1 and 2, which torch writes as two Gathers."""

NET = f"""(float[B, 2, 4, F] x, float[B, 2, 2, F] cache, float[1, B, 6] state)
=> (float[a, b, c, d] y) {{
    joined = Concat <axis = 2> (cache, x)
    none = ConstantOfShape <value = int64[1] {{0}}> (four)
    ends = Concat <axis = 0> (sides, none)
    pairs = Reshape (ends, halves)
    last = Slice (pairs, minus, least, v0, minus)
    turned = Transpose <perm = [1, 0]> (last)
    pads = Reshape (turned, minus)
    padded = Pad (joined, pads)
    {UNFOLD}
    taken = Conv (unfolded, w1)
    s = Shape (taken)
    half = Div (s, parts)
    made = ScatterND (half, place, four)
    grid = Concat <axis = 0> (made, minus)
    image = Reshape (taken, grid)
    seen = Conv <pads = [1, 1, 1, 1]> (image, w2)
    bright = Relu (seen)
    m = Shape (bright)
    ones = ConstantOfShape <value = int64[1] {{1}}> (four)
    shown = Expand (one, m)
    wanted = Mul (m, ones)
    is_open = Equal (wanted, negative)
    chosen = Where (is_open, ones, wanted)
    more = Expand (bias, chosen)
    sum1 = Add (bright, more)
    sum = Mul (sum1, shown)
    lengths = Cast <to = 1> (m)
    scaled = Mul (lengths, scales)
    floors = Floor (scaled)
    sizes = Cast <to = 7> (floors)
    bigger = Resize <mode = "nearest"> (sum, absent, absent, sizes)
    still = Conv <pads = [1, 1, 1, 1]> (bigger, w3)
    k = Gather (m, k1)
    is_four = Equal (k, kfour)
    branched = If (is_four) <
      then_branch = yes () => (float[e, f, g, h] t) {{
        p = Shape (still)
        q = Slice (p, v0, v2)
        r = Concat <axis = 0> (q, minus, v1)
        t = Reshape (still, r) }},
      else_branch = no () => (float[e, f, g] u) {{ u = Squeeze (still, v0) }}>
    rowed = Conv (branched, w4)
    length = Squeeze (rowed, v3)
    turns = Transpose <perm = [2, 0, 1]> (length)
    all, new_state = GRU <hidden_size = 6> (turns, w5, w6, absent, absent, state)
    z = Shape (all)
    z1 = ReduceProd <keepdims = 1> (z)
    z2 = Div (z1, six)
    z3 = Concat <axis = 0> (v1, v2, z2, v3)
    back = Reshape (all, z3)
    y1 = ConvTranspose <strides = [2, 1]> (back, w7)
    y = Identity (y1)
}}"""


NUMBERS = {
    **{f"k{n}": n for n in (0, 1, 2, 3, 9)},
    **{f"v{n}": [n] for n in (0, 1, 2, 3)},
    "kfour": 4,
    "four": [4],
    "six": [6],
    "minus": [-1],
    "least": [-(2**63) + 1],
    "upright": [-1, 1],
    "halves": [-1, 2],
    "sides": [1, 1, 1, 1],
    "parts": [1, 1, 6],
    "place": [[1]],
    "negative": [-1],
}
WEIGHTS = {
    "w1": (4, 18, 1),
    "w2": (4, 4, 3, 3),
    "w3": (4, 4, 3, 3),
    "w4": (5, 4, 3, 1),
    "w5": (1, 18, 5),
    "w6": (1, 18, 6),
    "w7": (2, 3, 2, 1),
    "bias": (4, 1, 1),
    "one": (1, 1, 1, 1),
}


def net(batch: object, bins: object) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    text = NET.replace("[B, 2", f"[{batch}, 2").replace(", B, 6", f", {batch}, 6")
    model = parsed(
        text.replace(", F]", f", {bins}]"),
        opset=16,
        **{name: np.int64(number) for name, number in NUMBERS.items()},
        **{n: rng.integers(-2, 3, e).astype(np.float32) for n, e in WEIGHTS.items()},
        scales=np.float32([1, 1, 1.5, 1.5]),
    )
    for node in model.graph.node:
        node.input[:] = ["" if name == "absent" else name for name in node.input]
    return model


FEEDS = {
    "x": np.ones((1, 2, 4, 12), np.float32),
    "cache": np.ones((1, 2, 2, 12), np.float32),
    "state": np.ones((1, 1, 6), np.float32),
}


@pytest.mark.parametrize(("batch", "bins"), [(1, 12), ("B", 12), (1, "F"), ("B", "F")])
def test_what_is_known_is_true(batch, bins):
    check(net(batch, bins), FEEDS)


def test_where_all_inputs_have_extents_all_values_have():
    model = net(1, 12)
    assert shape(model, "y") == (1, 3, 158, 3)
    for node in model.graph.node:
        for name in node.output:
            dims = shape(model, name)
            assert dims is not None and None not in dims, name
    assert shape(model, "t", "branched/then_branch") == (1, 4, 81, 1)
    _, sites = fold_model(model, FoldOptions(factor=2, ragged=True, max_channels=4096))
    assert Counter(site.code for site in sites) == {"folded": 5}


def test_extents_of_an_open_batch_are_open_alone():
    model = net("B", 12)
    assert shape(model, "padded") == (None, 2, 8, 14)
    assert shape(model, "unfolded") == (None, 18, None)
    assert shape(model, "image") == (None, 4, None, None)
    assert shape(model, "rowed") == (None, 5, None, 1)
