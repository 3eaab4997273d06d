"""Layers that agree on a state are tried together, although each does better alone otherwise."""

import json
from pathlib import Path

import onnx
import pytest

from tests.cli.tool import build, save
from tests.plan.test_search import ALL, THREE, found, status
from tests.plan.tool import layers
from tests.plan.world import World, doubled, enter
from widthfold_onnx.plan.families import SLOWEST, families
from widthfold_onnx.plan.measure import now
from widthfold_onnx.plan.store import Measurement
from widthfold_onnx.rewrite.record import read_record


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save(build(THREE), tmp_path / "model.onnx")


def test_one_family_for_each_choice_of_axes(model) -> None:
    known_layers = layers(onnx.load(model))

    def known(subject: str, key: str) -> Measurement | None:
        record = read_record(key)
        ratio = SLOWEST / 2 if record.axis == "height" else 1 / record.factor
        return Measurement("ok", ratio, ratio, ratio, 1.0, 4, "", now()) if ratio else None

    found_families = families(known_layers, known, 100)
    axes = [{read_record(key).axis for key in family.values()} for family in found_families]
    assert axes
    assert all(len(names) == 1 for names in axes)
    assert "height" not in set().union(*axes)
    for family in found_families:
        records = [json.loads(key) for key in family.values()]
        states = {
            (r["batch"], r["lift"], *((a["in_digits"], a["blocked"]) for a in r["axes"]))
            for r in records
        }
        assert len(states) == 1
        assert all(a["in_digits"] == a["out_digits"] for r in records for a in r["axes"])
        assert sum(known_layers.count(subject) for subject in family) > 1
    assert families(known_layers, known, 1) == found_families[:1]


def test_a_family_that_helps_the_whole_model_is_taken(model, monkeypatch) -> None:
    # Alone every fold is slower, so no layer would be folded.
    world = enter(monkeypatch, World(lambda layer, form: (0.8, 0.7), ALL), families=1)
    report = found(model)
    assert set(status(report).values()) == {"folded"}
    assert world.compared[0] == (frozenset(), frozenset(ALL))


def test_a_family_that_does_not_is_not(model, monkeypatch) -> None:
    enter(monkeypatch, World(lambda layer, form: (0.8, 0.7), dict.fromkeys(ALL, -1.0)), families=3)
    report = found(model)
    assert set(status(report).values()) == {"no-gain"}
    assert report.search.whole is None
    assert model.with_name("out.onnx").read_bytes() == model.read_bytes()


def test_nothing_is_tried_twice(model, monkeypatch) -> None:
    enter(monkeypatch, World(doubled, ALL), families=8)
    first = found(model)
    world = enter(monkeypatch, World(doubled, ALL), families=8)
    assert found(model).sites == first.sites
    assert (world.raced, world.compared) == ([], [])
