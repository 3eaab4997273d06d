"""Layers agree on layouts where that costs least; all choices of small models are tried out."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import pytest

from tests.small_models import build, save
from tests.tuning.search.nets import ALL, THREE, found, status
from tests.tuning.workloads.tool import layers_of
from tests.tuning.world import World, enter
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.tuning.bench import MIN_GAIN
from widthfold_onnx.tuning.layers import Layers, Link, subject_inside
from widthfold_onnx.tuning.measurement import AS_IS, Candidate, Measurement, now
from widthfold_onnx.tuning.search.agreement import forms_by_measurement, forms_by_prediction
from widthfold_onnx.tuning.targets import load_target
from widthfold_onnx.tuning.workloads import PredictedForm, Workload

RESIDUAL = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,2,4,24] x) => (float[1,2,4,24] y, float[1,3,4,24] z)
<float[2,2,1,3] w1, float[2,2,1,1] w2, float[2,2,1,5] w3, float[3,2,1,3] w4>
{
    [first] a = Conv <pads = [0,1,0,1]> (x, w1)
    b = Relu (a)
    [second] c = Conv (b, w2)
    [third] d = Conv <pads = [0,2,0,2]> (c, w3)
    e = Add (d, b)
    y = Softmax (e)
    [fourth] z = Conv <pads = [0,1,0,1]> (e, w4)
}"""
PRODUCTS = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[3,48] x) => (float[4,48] y, float[2,48] z)
<float[4,3] w1, float[5,4] w2, float[4,5] w3, float[2,4] w4, float[4,1] bias>
{
    [first] a = MatMul (w1, x)
    b = Add (bias, a)
    [second] c = MatMul (w2, b)
    [third] d = MatMul (w3, c)
    e = Add (d, b)
    y = Softmax (e)
    [fourth] z = MatMul (w4, e)
}"""
FORMS = 3
Known = Callable[[str, Candidate], Measurement | None]


@pytest.fixture(scope="module", params=[RESIDUAL, PRODUCTS], ids=["convs", "products"])
def every(request: pytest.FixtureRequest) -> Layers:
    return layers_of(build(request.param))


def holding(layers: Layers, **workloads: Mapping[str, Workload]) -> Layers:
    """The layers with these workloads in place of the predicted ones."""
    other = replace(layers)
    vars(other).update(workloads)
    return other


def few(every: Layers, rng: np.random.Generator) -> Layers:
    """The layers of a model with some forms each, more of them in layouts that others know."""
    workloads = {}
    for subject, workload in every.workloads.items():
        likely = [
            1.0 + 20 * (f.input_layout is not None and f.input_layout == f.output_layout)
            for f in workload.forms
        ]
        picked = rng.choice(len(likely), FORMS, replace=False, p=np.array(likely) / sum(likely))
        workloads[subject] = replace(
            workload, forms=tuple(workload.forms[i] for i in sorted(picked))
        )
    return holding(every, workloads=workloads, workloads_inside=every.workloads_inside)


def world(found_layers: Layers, rng: np.random.Generator) -> Known:
    times: dict[tuple[str, Candidate], Measurement] = {}

    def put(subject: str, candidate: Candidate, ratio: float, seconds: float) -> None:
        times[subject, candidate] = Measurement("ok", ratio, ratio, ratio, seconds, 4, "", now())

    for subject, workload in found_layers.workloads.items():
        own = float(rng.uniform(1, 3))
        put(subject, AS_IS, 1.0, own)
        for form in workload.forms:
            core, ends = rng.uniform(0.3, 1.2) * own, rng.uniform(0, 1) * own
            put(subject, form.spec, own / (core + ends), core + ends)
            if rng.random() < 0.8 and not form.input_layout == form.output_layout is None:
                put(subject_inside(subject), form.spec, own / core, core)
    return lambda *key: times.get(key)


def cost(
    found_layers: Layers, measurements: Known, choice: Mapping[str, PredictedForm | None]
) -> float:
    """The cost of a choice, by trying all layouts of every link."""
    total, ends = 0.0, {}
    for subject, form in choice.items():
        seconds = measurements(subject, AS_IS).seconds
        ends[subject] = (None, None)
        if form is None:
            total += seconds / MIN_GAIN
        elif between := measurements(subject_inside(subject), form.spec):
            total += seconds / between.low
            ends[subject] = (form.input_layout, form.output_layout)
        else:
            total += seconds / measurements(subject, form.spec).low
    for link in found_layers.links:
        price = prices(found_layers, measurements, link)
        layouts = [None, *price]
        total += min(
            sum(price[layout] for layout in conversions(link, ends, shared)) for shared in layouts
        )
    return total


def prices(found_layers: Layers, measurements: Known, link: Link) -> dict[object, float]:
    price: dict[object, float] = {}
    for subject, end in [*((s, 1) for s in link.makers), *((s, 0) for s in link.readers)]:
        for form in found_layers.workloads[subject].forms:
            between = measurements(subject_inside(subject), form.spec)
            layout = (form.input_layout, form.output_layout)[end]
            if between is not None and layout is not None:
                own = measurements(subject, AS_IS).seconds
                rest = own / measurements(subject, form.spec).low - own / between.low
                part = rest / (2 - (form.input_layout, form.output_layout).count(None))
                price[layout] = max(price.get(layout, 0.0), part)
    return price


def conversions(link: Link, ends: Mapping[str, tuple], shared: object) -> Iterator[object]:
    """The layout of every fold and every unfold, where the tensors themselves are in `shared`."""
    layouts = {ends[s][1] for s in link.makers} | ({None} if link.has_other_maker else set())
    read = {ends[s][0] for s in link.readers} | ({None} if link.has_other_reader else set())
    if shared is not None and layouts - {shared}:
        yield shared  # folded from the logical tensor
    if shared is not None and read - {shared}:
        yield shared  # unfolded for readers of other layouts
    yield from layouts - {shared, None}
    yield from read - {shared, None}


@pytest.mark.parametrize("seed", range(10))
def test_no_other_choice_costs_less(seed: int, every: Layers) -> None:
    rng = np.random.default_rng(seed)
    some = few(every, rng)
    measurements = world(some, rng)
    assert len(some.links) == 4
    options = [
        [(subject, form) for form in (None, *workload.forms)]
        for subject, workload in some.workloads.items()
    ]
    best = min(cost(some, measurements, dict(c)) for c in itertools.product(*options))
    specs = forms_by_measurement(some, measurements)
    forms = {
        subject: next((f for f in workload.forms if f.spec == specs.get(subject)), None)
        for subject, workload in some.workloads.items()
    }
    assert cost(some, measurements, forms) == pytest.approx(best)
    assert forms_by_measurement(some, measurements) == specs


@pytest.mark.parametrize("seed", range(5))
def test_what_is_predicted_is_chosen_if_it_is_measured_so(seed: int, every: Layers) -> None:
    some = few(every, np.random.default_rng(seed))

    def prediction(subject: str, candidate: Candidate) -> Measurement | None:
        for own, workload in some.workloads.items():
            seconds = {AS_IS: workload.predicted_seconds} if subject == own else {}
            if subject == own:
                seconds |= {form.spec: form.predicted_seconds for form in workload.forms}
            elif subject == subject_inside(own) and own in some.workloads_inside:
                forms = set(some.workloads_inside[own].forms) & set(workload.forms)
                seconds = {form.spec: form.predicted_seconds_inside for form in forms}
            if candidate in seconds:
                ratio = workload.predicted_seconds / seconds[candidate]
                return Measurement("ok", ratio, ratio, ratio, seconds[candidate], 4, "", now())
        return None

    assert forms_by_prediction(some) == forms_by_measurement(some, prediction)


@pytest.mark.parametrize(("alone", "folded"), [(1.2, 4), (9.0, 0)])
def test_forms_of_a_region_are_predicted_though_they_look_slow_alone(
    every: Layers, alone: float, folded: int
) -> None:
    """Four layers that all take 1 s as they are, and 0.5 s if they are packed alike."""
    measurements = Counter(
        layout
        for w in every.workloads.values()
        for layout in {
            f.input_layout for f in w.forms if f.input_layout and f.input_layout == f.output_layout
        }
    )
    ((layout, _),) = measurements.most_common(1)
    workloads, inside = {}, {}
    for subject, workload in every.workloads.items():
        form = next(f for f in workload.forms if f.input_layout == f.output_layout == layout)
        times = form._replace(predicted_seconds=alone, predicted_seconds_inside=0.5)
        workloads[subject] = replace(workload, predicted_seconds=1.0, forms=(times,))
        inside[subject] = replace(workloads[subject], is_inside=True)
    assert (
        len(forms_by_prediction(holding(every, workloads=workloads, workloads_inside=inside)))
        == folded
    )


def test_what_was_not_measured_or_lost_is_not_chosen(every: Layers) -> None:
    assert forms_by_measurement(every, lambda subject, candidate: None) == {}
    own = Measurement("ok", 1.0, 1.0, 1.0, 1.0, 4, "", now())
    crashed = Measurement.lost("it crashed")
    assert (
        forms_by_measurement(every, lambda s, candidate: own if candidate == AS_IS else crashed)
        == {}
    )
    assert (
        forms_by_measurement(
            Layers(load_target("cpu-avx2"), FoldOptions()), lambda subject, candidate: None
        )
        == {}
    )


def test_layers_that_gain_only_together_are_folded_together(tmp_path, monkeypatch) -> None:
    path = save(build(THREE), tmp_path / "model.onnx")

    def alone(layer: dict, form: dict) -> tuple[float, float] | str:
        tiles = {(axis["out_tile"], axis["in_tile"]) for axis in form["axes"]}
        agrees = (form["axis"], form["tile_major"], form["lift"]) == ("width", False, 0)
        if not agrees or tiles != {(1, 1), (4, 4)}:
            return "too slow"
        return (3.0, 2.9) if "inside" in layer else (0.9, 0.8)

    entered = enter(monkeypatch, World(alone, ALL))
    report = found(path)
    assert {(site.status, site.axis, site.factor) for site in report.sites} == {
        ("folded", "width", 4)
    }
    assert entered.compared[-1] == (frozenset(), frozenset(ALL))
    # The model as a whole has the last word.
    (tmp_path / "other").mkdir()
    path = save(build(THREE), tmp_path / "other" / "model.onnx")
    enter(monkeypatch, World(alone, dict.fromkeys(ALL, -1.0)))
    report = found(path)
    assert set(status(report).values()) == {"no-gain"}
    assert path.with_name("out.onnx").read_bytes() == path.read_bytes()


LINEAR = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,64,3] x) => (float[1,64,2] y)
<float[3,4] w1, float[4] b1, float[4,5] w2, float[5] b2, float[5,2] w3>
{
    [first] m1 = MatMul (x, w1)
    a1 = Add (m1, b1)
    r1 = Relu (a1)
    [second] m2 = MatMul (r1, w2)
    a2 = Add (b2, m2)
    r2 = Relu (a2)
    [third] y = MatMul (r2, w3)
}"""


def test_linear_layers_that_gain_only_together_are_folded_together(tmp_path, monkeypatch) -> None:
    def alone(layer: dict, form: dict) -> tuple[float, float] | str:
        if form["factor"] != 4:
            return "too slow"
        return (3.0, 2.9) if "inside" in layer else (0.9, 0.8)

    entered = enter(monkeypatch, World(alone, ALL))
    report = found(save(build(LINEAR), tmp_path / "model.onnx"), {"pad_channels": 0})
    assert [(site.status, site.axis, site.factor) for site in report.sites] == [
        ("folded", "rows", 4)
    ] * 3
    assert entered.compared[-1] == (frozenset(), frozenset(ALL))


def test_links_are_what_a_state_passes_through(every: Layers) -> None:
    names = {subject: name.node for name, subject in every.subjects.items()}
    seen = [
        (
            {names[s] for s in link.makers},
            {names[s] for s in link.readers},
            link.has_other_maker,
            link.has_other_reader,
        )
        for link in every.links
    ]
    assert len(seen) == 4
    for link in (
        (set(), {"first"}, True, False),
        ({"second"}, {"third"}, False, False),
        ({"first", "third"}, {"second", "fourth"}, False, True),
        ({"fourth"}, set(), False, True),
    ):
        assert link in seen
