#!/usr/bin/env python3
"""Time models on two execution providers, as they are and with folds tuned for each, as a table.

usage: providers_bench.py --other PYTHON [--provider openvino] [--rounds 8] [--seconds 2] MODEL ...

The provider's build of ONNX Runtime installs the same Python module as this one's, so it has an
environment of its own: --other is the Python in it. `widthfold optimize --factor auto` tunes each
model in both environments (--stores FOLDER keeps the measurements). Then processes of both take
turns. In each process the model and its fold run alternately at every level that is worth a try, on
one thread and the same random inputs. A side counts at its best level, by the median
of its processes. The numbers go to benchmarks/providers.json, which --report makes a table of in
docs/providers.md.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from itertools import combinations, product
from pathlib import Path

import msgspec
import numpy as np
import onnx
from bench import SHARED
from benchmark.measuring import SHAPES
from benchmark.report import put_between

from widthfold_onnx.options import Provider, VerifyOptions
from widthfold_onnx.runtime.clock import alternate, clock_of
from widthfold_onnx.runtime.inputs.input_sets import timed_inputs
from widthfold_onnx.runtime.intervals import interval, speed_verdict
from widthfold_onnx.runtime.library import runtime_version
from widthfold_onnx.runtime.settings import open_at, run_of, settings_of

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "benchmarks" / "providers.json"
PAGE = ROOT / "docs" / "providers.md"
BEGIN, END = "<!-- made by scripts/providers_bench.py -->", "<!-- /made -->"
TOOL = "import sys; from widthfold_onnx.cli import main; sys.exit(main())"
FOLDED = {False: "as it is", True: "folded"}


class Side(msgspec.Struct, frozen=True):
    """A model in a provider: median milliseconds of each process by level."""

    provider: str
    folded: bool
    levels: dict[str, list[float]]

    @property
    def level(self) -> str:
        """The fastest level."""
        return min(self.levels, key=lambda level: float(np.median(self.levels[level])))

    @property
    def ms(self) -> list[float]:
        """Medians of the processes at that level."""
        return self.levels[self.level]

    def __str__(self) -> str:
        return f"{self.provider} {FOLDED[self.folded]}"


class Row(msgspec.Struct, frozen=True):
    """A model; which nodes were folded for which provider is in `folds`."""

    model: str
    versions: dict[str, str]
    folds: dict[str, int]
    sides: list[Side]


def timed(models: list[Path], provider: Provider, seconds: float) -> list[Side]:
    """Time an original and its fold at all levels in this process."""
    options = VerifyOptions(provider=provider)
    settings = settings_of(options)
    inputs = timed_inputs(open_at(models[0], settings[0]), None, options)
    cases = list(product((False, True), settings))
    runs = [run_of(open_at(models[folded], at), inputs.sets) for folded, at in cases]
    clock = clock_of(options)
    rounds = max(round(seconds / alternate(runs, 3, clock).mean(axis=1).sum()), 5)
    times = np.median(alternate(runs, rounds, clock), axis=1) * 1e3
    levels: dict[bool, dict[str, list[float]]] = {False: {}, True: {}}
    for (folded, at), ms in zip(cases, times, strict=True):
        levels[folded][at.level] = [float(ms)]
    return [Side(provider, folded, levels[folded]) for folded in levels]


def ratio(slow: Side, fast: Side) -> tuple[float, float, float]:
    """Time of one / time of the other with its 95 % interval, over the processes."""
    logs = np.log(slow.ms) - np.log(fast.ms)
    middle, low, high = map(math.exp, interval(logs[:, np.newaxis, np.newaxis]))
    return middle, low, high


def best(sides: list[Side]) -> list[Side]:
    """Return the sides that no other side surely beats."""
    beaten = set()
    for first, second in combinations(range(len(sides)), 2):
        verdict = speed_verdict(*ratio(sides[first], sides[second])[1:], 0.0)
        beaten |= {"faster": {first}, "slower": {second}}.get(verdict, set())
    return [side for number, side in enumerate(sides) if number not in beaten]


def table(rows: list[Row]) -> str:
    """The table, as Markdown."""
    names = [str(side) for side in rows[0].sides]
    lines = [
        f"| model | {names[0]} | {' | '.join(names[1:])} | take |",
        "|---|" + "---|" * (len(names) + 1),
    ]
    for row in rows:
        base, *others = row.sides
        cells = [f"{np.median(base.ms):.3g} ms ({base.level})"]
        for side in others:
            if side.folded and not row.folds[side.provider]:
                cells.append("nothing pays")
                continue
            middle, low, high = ratio(base, side)
            cells.append(f"{middle:.2f}x [{low:.2f}, {high:.2f}] ({side.level})")
        offered = [side for side in row.sides if not side.folded or row.folds[side.provider]]
        take = " or ".join(map(str, best(offered)))
        lines.append(f"| {row.model} | {' | '.join(cells)} | {take} |")
    return "\n".join(lines)


def sized(model: Path, folder: Path) -> Path:
    """Return the model, or a copy that holds the sizes that it is timed at.

    OpenVINO does not take a part of a graph whose inputs are of unknown rank.
    """
    shapes = SHAPES.get(model.stem)
    if shapes is None:
        return model
    proto = onnx.load(model)
    for value in proto.graph.input:
        dims = value.type.tensor_type.shape.dim
        for dim, size in zip(dims, shapes[value.name], strict=True):
            dim.dim_value = size
    onnx.save(proto, folder / model.name)
    return folder / model.name


def run(python: str, *arguments: object) -> str:
    """Run the Python of an environment and return its output."""
    words = [python, *map(str, arguments)]
    return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout


def measured(model: Path, pythons: dict[str, str], arguments: argparse.Namespace) -> Row:
    """Measure all sides of a model."""
    folds, outs = {}, {}
    arguments.stores.mkdir(parents=True, exist_ok=True)
    model = sized(model, arguments.stores)
    for provider, python in pythons.items():
        outs[provider] = arguments.stores / f"{model.stem}.{provider}.onnx"
        report = outs[provider].with_suffix(".json")
        store = arguments.stores / f"{provider}.store"
        where = ("--provider", provider, "--store", store, "--report", report)
        run(python, "-c", TOOL, "optimize", model, outs[provider], *where)
        summary = msgspec.json.decode(report.read_bytes())["summary"]
        folds[provider] = summary["folded"] + summary["exchanged"]
    levels: dict[tuple[str, bool], dict[str, list[float]]] = {}
    versions = {}
    for number in range(arguments.rounds):
        for provider in list(pythons)[:: 1 if number % 2 else -1]:
            words = ("--child", provider, "--seconds", arguments.seconds, model, outs[provider])
            answer = msgspec.json.decode(run(pythons[provider], __file__, *words), type=Answer)
            versions[provider] = answer.version
            for side in answer.sides:
                times = levels.setdefault((provider, side.folded), {})
                for level, ms in side.levels.items():
                    times.setdefault(level, []).extend(ms)
    order = product(pythons, (False, True))
    sides = [Side(provider, folded, levels[provider, folded]) for provider, folded in order]
    return Row(model.stem, versions, folds, sides)


class Answer(msgspec.Struct, frozen=True):
    """The answer of a process."""

    version: str
    sides: list[Side]


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--other")
    parser.add_argument("--provider", type=Provider, default=Provider.OPENVINO)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--stores", type=Path, default=ROOT / "build" / "providers")
    parser.add_argument("--child", type=Provider)
    parser.add_argument("--report", action="store_true")
    arguments = parser.parse_args()
    if arguments.child:
        sides = timed(arguments.models, arguments.child, arguments.seconds)
        print(msgspec.json.encode(Answer(runtime_version(), sides)).decode())
        return
    rows: dict[str, Row] = {}
    if KEPT.exists():
        rows = {row.model: row for row in msgspec.json.decode(KEPT.read_bytes(), type=list[Row])}
    if not arguments.report:
        if not arguments.other:
            parser.error("--other: the Python of the provider's environment")
        pythons = {Provider.CPU.value: sys.executable, arguments.provider.value: arguments.other}
        for model in arguments.models or sorted(SHARED.glob("*.onnx")):
            try:
                rows[model.stem] = measured(model, pythons, arguments)
            except subprocess.CalledProcessError as error:
                print(f"{model.name} is NOT in the table: {error}", file=sys.stderr)
            KEPT.write_bytes(msgspec.json.format(msgspec.json.encode(list(rows.values()))) + b"\n")
    put_between(PAGE, BEGIN, END, f"\n\n{table(list(rows.values()))}\n\n")


if __name__ == "__main__":
    main()
