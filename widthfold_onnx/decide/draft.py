"""Draft a plan before its layers are decided: frozen weights, companions, padded channels."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec
import onnx

from widthfold_onnx.decide.decisions import is_selected
from widthfold_onnx.errors import UsageError
from widthfold_onnx.model.proto.walk import frozen, overridable
from widthfold_onnx.options import Companion, FoldOptions, NonFinite
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.results import CompanionReport, Gain, PaddedChannels, PaddingReport, Stop
from widthfold_onnx.rewrite.apply import Reading
from widthfold_onnx.rewrite.exchange import Match, exchanged
from widthfold_onnx.rewrite.padding import survey_padding
from widthfold_onnx.rewrite.plan import CompanionPlan, Limits, PaddingPlan, Plan


def drafted(proto: onnx.ModelProto, options: FoldOptions) -> Plan:
    """Return a plan that freezes weights if the options ask for it, and does nothing else.

    Raises:
        UsageError: sizes are to be fixed, and none are given.
    """
    if options.fixed_shapes and not any(options.input_shapes):
        raise UsageError("--fixed-shapes declares the sizes of --input-shape: give them")
    return Plan(
        frozen=tuple(sorted(overridable(proto))) if options.freeze_weights else (),
        sizes=tuple(map(dict, options.input_shapes)),
        limits=Limits.of(options),
    )


def matches_of(
    proto: onnx.ModelProto, folder: Path | None, draft: Plan, names: Collection[Companion]
) -> list[Match]:
    """Return the nodes that companions match, in the model with the frozen weights of a draft."""
    inputs = overridable(proto) - set(draft.frozen)
    return exchanged(frozen(proto, inputs), folder, names, nodes=())[1]


def with_companions(draft: Plan, matches: Sequence[Match]) -> Plan:
    """Return a plan in which companions replace all nodes that have an equal.

    Args:
        draft: the plan.
        matches: the matches of these companions and no others (`matches_of`): a companion may
            inline functions, and so rename the nodes of another.
    """
    companions = [
        CompanionPlan(graph=match.name.graph, node=match.name.node, companion=match.companion)
        for match in matches
        if not isinstance(match.outcome, Refusal)
    ]
    return msgspec.structs.replace(draft, companions=tuple(sorted(companions)))


def companion_reports(
    matches: Sequence[Match],
    done: Collection[Companion],
    why: str,
    gains: Mapping[Companion, Sequence[Gain]] | None = None,
) -> list[CompanionReport]:
    """Return one report for each companion that matches a node.

    Args:
        matches: the nodes that they match.
        done: the companions that were exchanged.
        why: reason for leaving other nodes alone, where that was not measured.
        gains: measured gains: on random inputs, and on smooth ones.
    """
    reports = []
    for name in dict.fromkeys(match.companion for match in matches):
        own = [(match, match.outcome) for match in matches if match.companion is name]
        equal = [(m.name.node, ops) for m, ops in own if not isinstance(ops, Refusal)]
        timed = (gains or {}).get(name, ())
        is_done = name in done
        reason = _not_taken(timed) if timed else why
        reports.append(
            CompanionReport(
                name=name.value,
                status="refused" if not equal else "exchanged" if is_done else "kept",
                nodes=[node for node, _ in equal],
                became=list(dict.fromkeys(", ".join(ops) for _, ops in equal)),
                refused=[
                    Stop(node=m.name.node, op=m.op, code=refusal.code, reason=refusal.reason)
                    for m, refusal in own
                    if isinstance(refusal, Refusal)
                ],
                reason="" if is_done or not equal else reason,
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


def padding_of(
    reading: Reading, options: FoldOptions, multiple: int
) -> tuple[list[PaddingPlan], list[Stop]]:
    """Return the chains of a model that can be padded to a multiple, and what ends the others.

    Args:
        reading: the model, not padded yet.
        options: select the layers. Zero rows make NaN of an Inf, so none is padded if these are to
            stay where they were.
        multiple: divides the padded channels.
    """
    if reading.is_folded or options.nonfinite is NonFinite.REFUSE:
        return [], []
    chains, stops = survey_padding(reading.document, multiple)
    selected = [c for c in chains if all(is_selected(part.node, options) for part in c.layers)]
    return selected, stops


def padding_report(
    plan: PaddingPlan | None,
    stops: Sequence[Stop],
    *,
    done: bool,
    reason: str = "",
    gain: Gain | None = None,
) -> PaddingReport | None:
    """Return the report of padded channels; None if there are neither these nor ends.

    Args:
        plan: the layers.
        stops: what ends channels that are not padded.
        done: whether the plan is carried out.
        reason: why it is not, where that was not measured.
        gain: of the whole model with it, where that was measured.
    """
    if plan is None:
        return None
    return PaddingReport(
        status="padded" if done else "kept",
        multiple=plan.multiple,
        layers=[
            PaddedChannels(node=layer.node, channels=layer.channels, padded=layer.padded)
            for layer in plan.layers
        ],
        stops=list(stops),
        reason="" if done else reason,
        gain=gain,
    )
