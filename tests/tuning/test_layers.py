"""The layers of a model: which are one subject, and which share a tensor."""

from __future__ import annotations

import json

from tests.small_models import build, conv
from tests.tuning.workloads.tool import BASE, layers_of, subject
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.refusal import Code
from widthfold_onnx.tuning.workloads import most_work_first


def test_alike_layers_are_one_subject_whatever_their_weights() -> None:
    model = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1,2,6,16] x) => (float[1,2,6,16] y)
    <float[2,2,3,3] w1, float[2,2,3,3] w2, float[2,2,3,3] w3>
    { [one] a = Conv <pads = [1,1,1,1]> (x, w1)
      [two] b = Conv <pads = [1,1,1,1], strides = [1,1]> (a, w2)
      [three] y = Conv <auto_pad = "SAME_UPPER"> (b, w3) }"""
    layers = layers_of(build(model))
    (only,) = layers.workloads
    assert set(layers.subjects.values()) == {only}
    assert layers.layer_count(only) == 3
    assert len(layers.cut_layers) == 1, "a layer is kept once, with its weights"
    assert subject(seed=1) == subject(seed=2) == subject()


def test_what_is_left_alone_is_no_workload() -> None:
    assert layers_of(conv(**BASE), FoldOptions(skip=("conv",))).workloads == {}
    wide = layers_of(conv(**BASE), FoldOptions(max_channels=2))
    assert wide.workloads == {}
    assert [subject.code for subject in wide.subjects.values()] == [Code.ALREADY_WIDE]


def test_a_layer_whose_data_is_declared_wrongly_shares_no_forms() -> None:
    """The body of the loop is declared with extents that later turns need not have."""
    model = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1,1,h,w] x, int64 m, bool go) => (float[1,1,p,q] y, float[1,1,a,b] z)
    <float[1,1,3,3] k> {
      z = Loop (m, go, x) <body = turn (int64 i, bool c, float[1,1,4,16] s)
        => (bool d, float[1,1,4,16] t) {
          d = Identity (c)
          [inside] t = Conv <pads = [1,1,1,1]> (s, k)
      }>
      [outside] y = Conv <pads = [1,1,1,1]> (x, k)
    }"""
    layers = layers_of(build(model), shapes={"x": (1, 1, 4, 16)})
    subjects = {name.node: subject for name, subject in layers.subjects.items()}
    assert subjects["inside"].code == Code.UNKNOWN_EXTENT
    assert layers.workloads[subjects["outside"]].forms


def test_the_most_work_comes_first() -> None:
    model = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1,1,6,16] x) => (float[1,1,6,16] y)
    <float[2,1,1,1] w1, float[2,2,3,3] w2, float[1,2,1,1] w3>
    { [small] a = Conv (x, w1)
      [large] b = Conv <pads = [1,1,1,1]> (a, w2)
      [last] y = Conv (b, w3) }"""
    layers = layers_of(build(model))
    order = most_work_first((*layers.workloads_inside.values(), *layers.workloads.values()))
    macs = [(workload.is_inside, -workload.macs) for workload in order]
    assert macs == sorted(macs)
    assert {inside for inside, _ in macs} == {False, True}
    assert json.loads(order[0].subject)["weight"] == [2, 2, 3, 3]


def test_times_are_predicted_for_the_target() -> None:
    layers = layers_of(conv(**BASE))
    (here,) = layers.workloads.values()
    without_blocked = layers.at(layers.target.without_blocked_kernels())
    (there,) = without_blocked.workloads.values()
    assert there.predicted_seconds != here.predicted_seconds
    assert {form.spec for form in there.forms} == {form.spec for form in here.forms}


NEIGHBOURS = """<ir_version: 8, opset_import: ["" : 17]>
net (float[1,2,37] x) => (float[1,5,29] y)
<float[3,2,3] first, float[7,3,3] second, float[5,7,5] lone>
{ a = Conv (x, first)  r = Relu (a)  b = Conv (r, second)
  t = Transpose<perm = [1,0,2]> (b)  c = Transpose<perm = [1,0,2]> (t)  y = Conv (c, lone) }"""


def test_a_layer_behind_an_op_that_needs_the_logical_tensor_is_no_neighbour() -> None:
    every = layers_of(build(NEIGHBOURS), shapes={"x": (1, 2, 37)})
    assert len(every.workloads) == 3
    (neighbours,) = every.neighbours
    assert sorted(json.loads(subject)["weight"] for subject in neighbours) == [[3, 2, 3], [7, 3, 3]]
