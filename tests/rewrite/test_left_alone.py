"""What a first run leaves alone is to a second run what it was to the first.

The extents that the first run assumed stand in the Reshapes of its folds; to a second run they are
no facts, so that it finds the same forms and refuses the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tests.rewrite.proved import assert_proved, proof
from widthfold_onnx import FoldOptions
from widthfold_onnx.model.graph import Document
from widthfold_onnx.plan.candidates import every_form
from widthfold_onnx.plan.decisions import applied, plan
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rules.base import LinearSite, Reformulation

Choose = Callable[[LinearSite, list[Reformulation]], Reformulation | Refusal]
Forms = dict[str, list[tuple[object, ...]]]

LEFT_ALONE = Refusal("no-gain", "left alone")
CHANNELS = 2


def run(
    model: onnx.ModelProto, options: FoldOptions, choose: Choose
) -> tuple[onnx.ModelProto, Forms, list[str]]:
    """The folded model, the forms of every site that was read, and which were left as they are."""
    found: Forms = {}

    def chosen(site: LinearSite) -> Reformulation | Refusal:
        forms = list(every_form(site, options))
        found[site.name] = [
            (form.form, form.axis, form.factor, form.bound, form.flops_ratio) for form in forms
        ]
        return choose(site, forms)

    document = Document(onnx.ModelProto.FromString(model.SerializeToString()), None)
    decisions = plan(document, options, chosen)
    left = [d.site.name for d in decisions if isinstance(d.outcome, Refusal)]
    return applied(document, decisions, options), found, left


@st.composite
def networks(draw: st.DrawFn) -> tuple[onnx.ModelProto, FoldOptions]:
    """x -> two or three Convs of all kinds, or products -> y; some extents of x are assumed."""
    rows = draw(st.sampled_from([False, False, True]))
    kinds = ["MatMul"] if rows else ["Conv", "Conv", "ConvTranspose"]
    shape = [2, draw(st.integers(4, 7)), draw(st.integers(4, 9))]
    shape.insert(3 if rows else 1, CHANNELS)
    extents = [i for i in range(4) if i != (3 if rows else 1)]
    is_open = draw(st.sets(st.sampled_from(extents), min_size=1))
    nodes, constants = [], []
    for index in range(draw(st.integers(2, 3))):
        kind, given, kernel = draw(st.sampled_from(kinds)), {}, []
        if not rows:
            kernel = [draw(st.integers(1, 3)), draw(st.integers(1, 3))]
            given["strides"] = [draw(st.integers(1, 2)), draw(st.integers(1, 2))]
            if kind == "Conv" and draw(st.booleans()):
                given["auto_pad"] = draw(st.sampled_from(["SAME_UPPER", "SAME_LOWER"]))
            elif kind == "Conv":
                given["pads"] = [0, 0, *(extent - 1 for extent in kernel)]
        weight = np.random.default_rng(index).integers(1, 4, (CHANNELS, CHANNELS, *kernel))
        constants.append(numpy_helper.from_array(weight.astype(np.float32), f"w{index}"))
        nodes.append(
            helper.make_node(kind, [f"v{index}", f"w{index}"], [f"a{index}"], f"n{index}", **given)
        )
        last = draw(st.sampled_from(["Relu", "Neg"]))
        nodes.append(helper.make_node(last, [f"a{index}"], [f"v{index + 1}"]))
    dims = [f"d{i}" if i in is_open else extent for i, extent in enumerate(shape)]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("v0", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, [None] * 4)],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model, FoldOptions(input_shapes={"v0": tuple(shape)}, mix_samples=draw(st.booleans()))


@settings(max_examples=settings.default.max_examples // 5)  # each reads every form twice
@given(networks(), st.data())
def test_it_has_the_same_forms(case: tuple[onnx.ModelProto, FoldOptions], data: st.DataObject):
    model, options = case
    alone = data.draw(st.sampled_from(["n0", "n1", "n2"]))

    def choose(site: LinearSite, forms: list[Reformulation]) -> Reformulation | Refusal:
        if not forms or site.name == alone:
            return LEFT_ALONE
        return forms[data.draw(st.integers(0, len(forms) - 1))]

    def none(site: LinearSite, forms: list[Reformulation]) -> Refusal:
        return LEFT_ALONE

    folded, first, left = run(model, options, choose)
    again, second, _ = run(folded, options, none)
    event(f"{len(first) - len(left)} folded, {len(left)} left alone")
    assert second == {name: first[name] for name in left if name in first}
    assert again.SerializeToString() == folded.SerializeToString()


FIRST = {
    "whole": ("n0 = Conv <pads = [0, 1, 0, 1]> (x, w0)", "whole", 7),
    "extended and cut": ("n0 = Conv <pads = [0, 1, 0, 1]> (x, w0)", "interleaved", 2),
    "SAME at a stride": (
        'n0 = Conv <auto_pad = "SAME_LOWER", strides = [1, 2]> (x, w0)',
        "interleaved",
        2,
    ),
    "output alone": ("n0 = ConvTranspose <strides = [1, 2]> (x, w0)", "sub-pixel", 1),
    "transposed": ("n0 = ConvTranspose <strides = [1, 2]> (x, w0)", "whole", 7),
}


def two_layers(first: str) -> onnx.ModelProto:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n,2,h,w] x) => (float[a,b,c,d] y) '
        f"{{ [n0] {first} m = Relu(n0) [n1] y = Conv(m, w1) }}"
    )
    for name in ("w0", "w1"):
        weight = np.random.default_rng(1).integers(1, 9, (2, 2, 1, 3)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    return model


@pytest.mark.parametrize("case", FIRST)
def test_assumed_extents_are_open_behind_a_fold_that_states_them(case: str) -> None:
    first, kind, factor = FIRST[case]
    model, options = two_layers(first), FoldOptions(input_shapes={"x": (2, 2, 5, 7)})

    def choose(site: LinearSite, forms: list[Reformulation]) -> Reformulation | Refusal:
        wanted = (form for form in forms if (form.kind, form.factor) == (kind, factor))
        return next(f for f in wanted if f.axis == "width") if site.name == "n0" else LEFT_ALONE

    folded, first_forms, left = run(model, options, choose)
    assert left == ["n1"]
    _, second_forms, left = run(folded, options, choose)
    assert left == ["n0", "n1"]
    assert second_forms == {"n1": first_forms["n1"]}


@pytest.mark.parametrize("guard", [False, True])
@pytest.mark.parametrize("case", FIRST)
def test_another_run_may_fold_it_all_the_same(case: str, guard: bool) -> None:
    model, options = two_layers(FIRST[case][0]), FoldOptions(input_shapes={"x": (2, 2, 5, 7)})

    def only(name: str) -> Choose:
        return lambda site, forms: forms[0] if site.name == name else LEFT_ALONE

    once, _, left = run(model, options, only("n0"))
    assert left == ["n1"]
    twice, _, left = run(once, replace(options, guard_shapes=guard), only("n1"))
    assert left == ["n0"]
    assert proof(once, twice, options.input_shapes).verdict == "equal"
    assert_proved(model, twice, 2, options.input_shapes)
