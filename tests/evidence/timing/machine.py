"""A machine of our own for timings: its clock moves only when a session runs."""

from pathlib import Path

import onnx

from widthfold_onnx.model.loader import LoadedModel
from widthfold_onnx.options import Provider
from widthfold_onnx.results import NodeTime
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.runtime.session import Port

MILLI = 1_000_000
NODES = [NodeTime(name=f"n{i}", op="Conv", provider="P" if i else "Q", us=1.0) for i in range(41)]


class Machine:
    """Sessions whose runs take a stated time.

    Attributes:
        costs: ms of a run, or of the first runs and all later ones, by (file, level), or by the
            order in which sessions were opened.
        first: ms of the first run of a session, by (file, level), where that differs.
        runs: (number of the session, input set) of every run.
    """

    def __init__(self, costs, first=None):
        self.costs, self.first = costs, first or {}
        self.now = 0
        self.opened = []
        self.runs = []

    def open_session(self, model, runtime_options, level=Level.ALL, **options):
        self.opened.append((model.name, level, runtime_options.threads))
        return Session(self, len(self.opened) - 1, model.name, level)

    def seconds(self):
        return self.now * 1e-9


class Limits:
    """Limits of the fake machine: none is measured."""

    def __init__(self, options):
        self.options = options

    def of(self, model, setting):
        return None

    def limits(self):
        return {}


class Session:
    provider = Provider.CPU
    inputs = (Port("x", "float32", (1, 256)),)

    def __init__(self, machine, number, name, level):
        self.machine, self.number = machine, number
        costs = machine.costs
        ms = costs[number] if isinstance(costs, list) else costs.get((name, level), 0)
        self.remaining = list(ms) if isinstance(ms, tuple) else [ms]
        if (name, level) in machine.first:
            self.remaining.insert(0, machine.first[name, level])

    def bound(self, feeds):
        def once():
            self.machine.runs.append((self.number, float(feeds["x"][0, 0])))
            ms = self.remaining.pop(0) if len(self.remaining) > 1 else self.remaining[0]
            self.machine.now += int(ms * MILLI)

        return once


def costs(a_all, a_extended, b_all, b_extended):
    return {
        ("a.onnx", Level.ALL): a_all,
        ("a.onnx", Level.EXTENDED): a_extended,
        ("b.onnx", Level.ALL): b_all,
        ("b.onnx", Level.EXTENDED): b_extended,
    }


FIRST_TIMED = 4
"""Sessions that were opened before: both levels of each model; the first one finds the shapes."""


def unread(path: Path) -> LoadedModel:
    """Return a model whose content is not looked at."""
    return LoadedModel(onnx.ModelProto(), path.parent, path, "", name=path.name)
