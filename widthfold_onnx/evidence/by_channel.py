"""Is a model that is written channel by channel the original?

The rewritten model may stem from one that `rewrite.by_channel` made of the original. That one is
made again here, and whatever made it, it is checked against the original: by what its tensors are
(`evidence.channels`), and by running every Conv on integers. Then the folds are proved against it
instead of the original.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import onnx

from widthfold_onnx.errors import NoKernelError, UnverifiedError
from widthfold_onnx.evidence.channel_probe import probe_channels
from widthfold_onnx.evidence.channels import Channels
from widthfold_onnx.evidence.claims import read
from widthfold_onnx.evidence.rewritten import label
from widthfold_onnx.model.graph import Document, Node
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.results import ExactSite
from widthfold_onnx.rewrite.by_channel import write_by_channel
from widthfold_onnx.rewrite.record import read_channel
from widthfold_onnx.rules.by_channel import is_single

Report = Callable[[str], None]


def by_channel(
    original: onnx.ModelProto,
    rewritten: Document,
    folder: Path | None,
    options: VerifyOptions,
    report: Report,
) -> tuple[onnx.ModelProto, list[ExactSite]]:
    """The model that the rewritten one was folded from, and its proof.

    Args:
        original: the model before.
        rewritten: the model after.
        folder: of the original's external data.
        options: where integers are run.
        report: gets a line of text per Conv.

    Returns:
        The original itself where nothing in the rewritten model is written channel by channel.
    """
    written = {record.of for node in rewritten.main for record in [read_channel(node)] if record}
    copy = onnx.ModelProto()
    copy.CopyFrom(original)
    again = Document(copy, folder)
    convs = [
        node
        for node in again.main
        if node.outputs[0].name in written and is_single(again, node) and not read_channel(node)
    ]
    if not convs:
        return original, []
    write_by_channel(again, again.main, convs)
    split = again.finish()
    old, new = Document(original, folder), Document(split, folder)
    return split, check_channels(old, new, options, report)


def check_channels(
    old: Document, new: Document, options: VerifyOptions, report: Report
) -> list[ExactSite]:
    """The proof of every Conv of `old` that is written channel by channel in `new`."""
    channels = Channels(old, new)
    fault = channels.fault()
    if fault:
        return [ExactSite(node="channels", verdict="different", reason=fault)]
    return [_probed(channels, conv, options, report) for conv in channels.convs]


def _probed(channels: Channels, conv: Node, options: VerifyOptions, report: Report) -> ExactSite:
    """The Conv and what stands for it, run on integers."""
    report(f"exact probe of {label(conv)}, channel by channel")
    weight = conv.inputs[1]
    assert weight is not None
    outputs, inputs, *_ = read(channels.old, weight).shape
    verdict: Literal["exact", "different", "proved", "skipped"] = "exact"
    reason = (
        f"{outputs * inputs} Convs of one channel hold its weight and bias, bit for bit, and are "
        "added up per output channel; "
    )
    try:
        found = probe_channels(channels.old, conv, channels.new, channels.products(conv), options)
        reason += "runs on integers agree bit for bit"
        if found:
            verdict, reason = "different", found
    except NoKernelError as error:
        verdict, reason = "proved", f"{reason}not run on integers: {error}"
    except UnverifiedError as error:
        verdict, reason = "skipped", str(error)
    return ExactSite(
        node=label(conv),
        verdict=verdict,
        reason=reason,
        channels=f"{inputs} -> {outputs}, {outputs * inputs} times 1 -> 1",
        fold="Written channel by channel.",
    )
