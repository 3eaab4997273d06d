#!/usr/bin/env python3
"""Does the search throw away forms that would have won? Race all of them and see.

usage: pruning.py [--search 60] [--out DIR] [MODEL ...]

Without MODEL: the real models beside the repository. The layers of every model race twice: as the
search races them, and with no form left out (`tuning.successive_halving`: a form is not run
if its multiply-adds alone would take longer than the layer takes, and not run again if its first
pair is twice as slow). The folder --out (benchmarks/) gets pruning.json and pruning.md.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from pathlib import Path

import msgspec
from bench import SHARED
from benchmark.measuring import SHAPES

from widthfold_onnx import WidthfoldError
from widthfold_onnx.model.loader import load
from widthfold_onnx.options import Effort, FoldOptions, Provider, RuntimeOptions, SearchOptions
from widthfold_onnx.rewrite.draft import Draft
from widthfold_onnx.rewrite.reading import Reading
from widthfold_onnx.runtime.inputs.sizes import provider_and_sizes
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.tuning import successive_halving
from widthfold_onnx.tuning.effort import SPENDING, RaceOptions
from widthfold_onnx.tuning.layers import Layers
from widthfold_onnx.tuning.measurement import (
    AS_IS,
    NO_TIME,
    Candidate,
    CandidateResult,
    Measurement,
)
from widthfold_onnx.tuning.targets import default_target, load_target

FEW = SPENDING[Effort.THOROUGH].pairs
HEAD = [
    "| model | layers | forms | not run | given up | of these faster | most that a layer lost |",
    "|---|---|---|---|---|---|---|",
]


class Row(msgspec.Struct, kw_only=True):
    """One model.

    Attributes:
        unrun: forms that the bound rules out.
        given_up: forms whose first pair was too slow.
        faster: forms of both kinds that are surely faster than the layer when they do run.
        lost: by layer, the gain of the best form of all over the best form of the search.
    """

    model: str
    layers: int = 0
    forms: int = 0
    unrun: int = 0
    given_up: int = 0
    faster: list[str] = []
    lost: dict[str, float] = {}
    note: str = ""


def raced(layers: Layers, seconds: float) -> dict[str, dict[Candidate, Measurement]]:
    """Return the measurements by layer and form."""
    measurements: dict[str, dict[Candidate, Measurement]] = defaultdict(dict)

    def keep(message: object) -> None:
        if isinstance(message, CandidateResult):
            measurements[message.subject][message.candidate] = message.measurement

    how = SearchOptions(provider=Provider.CPU, effort=Effort.THOROUGH)
    options = RaceOptions.at(Level.ALL, how)
    successive_halving.race(list(layers.workloads.values()), options, seconds, send=keep)
    return measurements


def compare(model: Path, seconds: float) -> Row:
    """Run both races of one model."""
    loaded, shapes = load(model), SHAPES.get(model.stem, {})
    _, sizes = provider_and_sizes(model, RuntimeOptions(provider=Provider.CPU), (shapes,))
    aim = load_target(default_target(Provider.CPU))
    layers = Layers.of(Reading.of(loaded, Draft()), FoldOptions(), sizes[0], aim)
    usually = raced(layers, seconds)
    margin, hopeless = successive_halving.PEAK_MARGIN, successive_halving.HOPELESS_RATIO
    successive_halving.PEAK_MARGIN = successive_halving.HOPELESS_RATIO = math.inf
    every = raced(layers, seconds)
    successive_halving.PEAK_MARGIN, successive_halving.HOPELESS_RATIO = margin, hopeless
    row = Row(model=model.stem, layers=len(layers.workloads), faster=[], lost={})
    for subject, forms in usually.items():
        for key, ran in forms.items():
            if key != AS_IS and ran.reason != NO_TIME:
                row.forms += 1
                row.unrun += not ran.pairs
                row.given_up += 0 < ran.pairs < FEW
                if ran.pairs < FEW and every[subject][key].low > 1:
                    row.faster.append(f"{subject} {key}")
        chosen, best = (
            max((ran.low for key, ran in way[subject].items() if key != AS_IS), default=1.0)
            for way in (usually, every)
        )
        if best > max(chosen, 1.0):
            row.lost[subject] = best / max(chosen, 1.0)
    return row


def table(rows: list[Row]) -> list[str]:
    """A line of Markdown per model."""
    return [
        f"| {row.model} | {row.layers} | {row.forms} | {row.unrun} | {row.given_up} | "
        f"{len(row.faster)} | {max(row.lost.values(), default=1.0) - 1:.1%} {row.note[:60]} |"
        for row in rows
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--search", type=float, default=60.0, help="seconds of a race per model")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "benchmarks")
    arguments = parser.parse_args()
    rows = []
    for model in arguments.models or sorted(SHARED.glob("*.onnx")):
        try:
            rows.append(compare(model, arguments.search))
        except WidthfoldError as error:
            rows.append(Row(model=model.stem, note=str(error)))
        print(table(rows[-1:])[-1], flush=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "pruning.json").write_bytes(msgspec.json.format(msgspec.json.encode(rows)))
    (arguments.out / "pruning.md").write_text("\n".join([*HEAD, *table(rows), ""]))


if __name__ == "__main__":
    main()
