"""Prepare a model for its folds as it was asked for, and say what became of companions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import onnx

from widthfold_onnx.model.proto.frozen import frozen
from widthfold_onnx.options import Companion, FoldOptions
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.results import CompanionReport, Gain, Stop
from widthfold_onnx.rewrite.exchange import Match, exchanged
from widthfold_onnx.rules.companions.table import COMPANIONS


def prepared(
    proto: onnx.ModelProto, folder: Path | None, options: FoldOptions
) -> tuple[onnx.ModelProto, list[CompanionReport]]:
    """Return a model with the companions and frozen weights that were asked for at a fixed factor.

    It is `proto` itself if nothing changes.
    """
    proto = frozen(proto) if options.freeze_weights else proto
    result, matches = exchanged(proto, folder, options.exchanges)
    return result, companion_reports(matches, options.exchanges, "")


def other_companions(
    proto: onnx.ModelProto, folder: Path | None, options: FoldOptions
) -> list[CompanionReport]:
    """Return what companions that were not asked for could do to a prepared model."""
    others = [name for name in COMPANIONS if name not in options.exchanges]
    matches = exchanged(proto, folder, others)[1]
    return companion_reports(matches, (), "left alone unless --companion names it")


def companion_reports(
    matches: Sequence[Match],
    done: Collection[Companion],
    why: str,
    gains: Mapping[Companion, Sequence[Gain]] | None = None,
) -> list[CompanionReport]:
    """Return one report for each companion that matches a node.

    Args:
        matches: what they match.
        done: those that were exchanged.
        why: why others were not, where that was not measured.
        gains: measured gains: on random inputs, and on smooth ones.
    """
    reports = []
    for name in dict.fromkeys(match.companion for match in matches):
        own = [(match, match.became) for match in matches if match.companion is name]
        equal = [(m.node, became) for m, became in own if not isinstance(became, Refusal)]
        timed = (gains or {}).get(name, ())
        is_done = name in done
        kept = _not_taken(timed) if timed else why
        reports.append(
            CompanionReport(
                name=name.value,
                status="refused" if not equal else "exchanged" if is_done else "kept",
                nodes=[node for node, _ in equal],
                became=list(dict.fromkeys(", ".join(became) for _, became in equal)),
                refused=[
                    Stop(node=match.node, op=match.op, code=became.code, reason=became.reason)
                    for match, became in own
                    if isinstance(became, Refusal)
                ],
                reason="" if is_done or not equal else kept,
                gain=timed[0] if timed else None,
                gain_on_smooth=timed[1] if len(timed) > 1 else None,
            )
        )
    return reports


def _not_taken(timed: Sequence[Gain]) -> str:
    """Return why a companion was left alone, by its gains on random and smooth inputs."""
    if timed[0].low <= 1:
        return "not surely faster"
    if any(gain.high < 1 for gain in timed):
        return "slower on smooth inputs"
    return "not surely faster in every trial"
