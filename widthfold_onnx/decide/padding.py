"""Say which channels of a model can be padded, and what became of them."""

from __future__ import annotations

from collections.abc import Sequence

from widthfold_onnx.decide.decisions import is_selected
from widthfold_onnx.options import FoldOptions, NonFinite
from widthfold_onnx.results import Gain, PaddedChannels, PaddingReport, Stop
from widthfold_onnx.rewrite.apply import Reading
from widthfold_onnx.rewrite.padding import survey_padding
from widthfold_onnx.rewrite.plan import PaddingPlan


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
