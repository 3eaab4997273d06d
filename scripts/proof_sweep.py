#!/usr/bin/env python
"""Look for pairs of models that differ on the runtime, and that the proof calls equal.

Every operator of onnx's node cases, and nodes of our own: one attribute, constant, input, operator
or opset is changed, at several extents, in a function and in a branch. Where both models run and
return different numbers, the proof must not say "equal". The count is written into
docs/verification.md.

    scripts/proof_sweep.py              # all pairs, on all cores; exit 1 if one is called equal
    scripts/proof_sweep.py OneHot Conv  # of some operators, with a line for each such pair
"""

from __future__ import annotations

import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

import onnx
from sweep.cases import Case, node_cases, own_cases, with_and_without_constants
from sweep.changes import changes, in_branch, in_function, settings
from sweep.judge import unequal, verdict

from widthfold_onnx.runtime.child import Child
from widthfold_onnx.system import cores

PAGE = Path(__file__).parents[1] / "docs" / "verification.md"
BEGIN, END = "<!-- made by scripts/proof_sweep.py -->", "<!-- /made by scripts/proof_sweep.py -->"


PLACES = (in_function, in_branch)

MAX_SET = 2
"""Cases of one operator that are tried at other extents, too."""


@dataclass
class Tally:
    """What a sweep found.

    Attributes:
        operators: the operators of unequal pairs.
        verdicts: how often the proof said what of unequal pairs.
        falsely_equal: the unequal pairs that the proof called equal.
        faults: the pairs that ended the proof with an exception.
    """

    operators: set[str] = field(default_factory=set)
    verdicts: Counter[str] = field(default_factory=Counter)
    falsely_equal: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Return the sentence of docs/verification.md."""
        counts = ", ".join(f"{count:,} {name}" for name, count in self.verdicts.most_common())
        total = self.verdicts.total()
        return (
            f"At the last run: {total:,} unequal pairs of {len(self.operators)} operators; the "
            f"proof called {len(self.falsely_equal)} of them equal ({counts})."
        )

    def __add__(self, other: Tally) -> Tally:
        """Return what two sweeps found together."""
        return Tally(
            self.operators | other.operators,
            self.verdicts + other.verdicts,
            self.falsely_equal + other.falsely_equal,
            self.faults + other.faults,
        )


def sweep(chosen: Iterable[Case], child: Child) -> Tally:
    """Judge all changes of some cases."""
    tally = Tally()
    seen: Counter[str] = Counter()
    for case in chosen:
        seen[case.operator] += 1
        for setting in settings(case) if seen[case.operator] <= MAX_SET else (case,):
            for name, old, new in unequal_pairs(setting, child):
                tally.operators.add(case.operator)
                try:
                    said = verdict(old, new, setting.feed)
                except Exception as error:
                    tally.faults.append(f"{setting.name}: {name}: {error!r}")
                    said = "fault"
                tally.verdicts[said] += 1
                if said == "equal":
                    tally.falsely_equal.append(f"{setting.name}: {name}")
    return tally


def unequal_pairs(
    case: Case, child: Child
) -> Iterator[tuple[str, onnx.ModelProto, onnx.ModelProto]]:
    """Yield each change after which the model returns other numbers, with both models.

    Half of the pairs come a second time, in a function or in a branch.
    """
    found = list(changes(case))
    answers = unequal(case, [model for _, model in found], child)
    for (name, changed), is_unequal in zip(found, answers, strict=True):
        if is_unequal:
            yield name, case.model, changed
            place = zlib.crc32(f"{case.name} {name}".encode()) % 4
            if place < len(PLACES):
                move = PLACES[place]
                yield f"{name}, {move.__name__}", move(case.model), move(changed)


def swept_part(names: Sequence[str], part: int, parts: int) -> Tally:
    """Sweep over the operators of these names, all if there are none, that fall into one part."""
    found = (
        case
        for case in (*own_cases(), *node_cases())
        if zlib.crc32(case.operator.encode()) % parts == part
        if case.node.op_type in names or not names
    )
    with Child() as child:
        return sweep(with_and_without_constants(found), child)


def main(names: list[str]) -> int:
    """Run the sweep and write its count; return the exit code."""
    parts = cores()
    with ProcessPoolExecutor(parts, mp_context=get_context("spawn")) as pool:
        tallies = pool.map(swept_part, [names] * parts, range(parts), [parts] * parts)
        tally = sum(tallies, Tally())
    print(*tally.falsely_equal, *tally.faults, tally.line(), sep="\n")
    if not names:
        head, _, rest = PAGE.read_text().partition(BEGIN)
        tail = rest.partition(END)[2]
        PAGE.write_text(f"{head}{BEGIN}\n{tally.line()}\n{END}{tail}")
    return 1 if tally.falsely_equal or tally.faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
