"""The sweep for pairs that differ and are called equal: what it counts, and a part of it."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from widthfold_onnx.runtime.child import Child


@pytest.fixture
def script(scripts: Path) -> ModuleType:
    """The script as a module."""
    return importlib.import_module("proof_sweep")


OPERATORS = ("OneHot", "QLinearConcat", "MaxPool", "Cast", "Clip", "ReduceMax", "ArgMax", "Gather")
"""Some of all: the nightly script takes every one."""


def test_no_pair_is_falsely_equal(script: ModuleType) -> None:
    chosen = (case for case in script.own_cases() if case.node.op_type in OPERATORS)
    with Child() as child:
        tally = script.sweep(script.with_and_without_constants(chosen), child)
    assert tally.falsely_equal == []
    assert len(tally.operators) == len(OPERATORS)
    assert tally.verdicts.total() > 150


def test_a_proof_that_says_equal_is_counted(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "verdict", lambda old, new, feed: "equal")
    nodes = [case for case in script.own_cases() if case.node.op_type == "Flatten"]
    with Child() as child:
        tally = script.sweep(nodes, child)
    assert tally.verdicts == {"equal": len(tally.falsely_equal)}
    assert "Flatten: axis 2" in tally.falsely_equal
    assert "5 unequal pairs of 1 operators; the proof called 5 of them equal" in tally.line()
