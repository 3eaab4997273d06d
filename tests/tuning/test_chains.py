"""Only layers that share a tensor are lifted together: a lone one gains nothing by it."""

from __future__ import annotations

import json

from tests.cli.tool import build
from tests.tuning.tool import layers

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
net (float[1,2,37] x) => (float[1,5,29] y)
<float[3,2,3] first, float[7,3,3] second, float[5,7,5] lone>
{ a = Conv (x, first)  r = Relu (a)  b = Conv (r, second)
  t = Transpose<perm = [1,0,2]> (b)  c = Transpose<perm = [1,0,2]> (t)  y = Conv (c, lone) }"""


def test_a_layer_behind_an_op_that_needs_the_logical_tensor_is_no_neighbour() -> None:
    every = layers(build(TEXT), shapes={"x": (1, 2, 37)})
    assert len(every.workloads) == 3
    (chain,) = every.chains
    assert sorted(json.loads(subject)["weight"] for subject in chain) == [[3, 2, 3], [7, 3, 3]]
