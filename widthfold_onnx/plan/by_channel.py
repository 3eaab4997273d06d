"""The same model with its small Convs written channel by channel, as a rival that may be folded.

A batch fold of a Conv of one channel is depthwise, and fills the lanes without a structural zero;
one of several channels is grouped, for which runtimes have no such kernel. Whether that outweighs
a node for every pair of channels is measured on the whole model, like everything else.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec
import onnx

from widthfold_onnx.model.graph import Document
from widthfold_onnx.model.loader import LoadedModel
from widthfold_onnx.options import AxisName, FoldOptions
from widthfold_onnx.plan.decisions import Decision
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.results import SiteReport
from widthfold_onnx.rewrite.by_channel import write_by_channel
from widthfold_onnx.rewrite.record import CHANNEL_KEY
from widthfold_onnx.rules.base import LinearSite, Site
from widthfold_onnx.rules.by_channel import is_single
from widthfold_onnx.rules.windowed import WindowedSite

LANES = 8
"""Samples that a batch must be a multiple of: floats in a vector of AVX2, the least that helps."""

FLOAT = 4
"""Bytes of a float."""


class Origin(NamedTuple):
    """A node of a model that may be written channel by channel, as reports call it."""

    op: str
    name: str


def candidates(
    document: Document,
    sites: Iterable[tuple[Site, LinearSite | Refusal | None]],
    options: FoldOptions,
) -> dict[str, str]:
    """Names of the sites that could be written so, by what they return; none where it is no use.

    A Conv that has one channel already does not count, and where sites are picked by hand or
    guarded none is rewritten beside them. Half precision would be rounded at every sum.

    Args:
        document: the model.
        sites: of it, read or not.
        options: which sites, and how they may be folded.
    """
    picked = options.nodes or options.skip or options.guards
    if picked or options.axis not in (AxisName.AUTO, AxisName.BATCH, 0):
        return {}
    return {
        site.node.outputs[0].name or "": site.name
        for site, conv in sites
        if isinstance(conv, WindowedSite)
        and not site.scope.path
        and CHANNEL_KEY not in site.node.metadata_props
        and conv.quantization is None
        and conv.itemsize >= FLOAT
        and conv.channels != (1, 1)
        and conv.planned[0]
        and conv.planned[0] % LANES == 0
        and is_single(document, site.node)
    }


def written(loaded: LoadedModel, names: Collection[str]) -> LoadedModel:
    """The model, at the path of the original, with the Convs that return `names` written so."""
    copy = onnx.ModelProto()
    copy.CopyFrom(loaded.proto)
    document = Document(copy, loaded.folder)
    convs = [node for node in document.main if node.outputs[0].name in names]
    write_by_channel(document, document.main, convs)
    return replace(loaded, proto=document.finish())


def joined(
    lines: Iterable[tuple[Decision, SiteReport]], names: Mapping[str, str]
) -> list[SiteReport]:
    """The lines of the report, with one for all channels of a Conv.

    Args:
        lines: of every decision.
        names: of the Convs that were written so, by what they return.
    """
    groups: dict[object, list[SiteReport]] = {}
    for decision, line in lines:
        of = decision.site.node.metadata_props.get(CHANNEL_KEY)
        groups.setdefault(of if of in names else decision.site, []).append(line)
    return [
        _one(group, names[of]) if isinstance(of, str) else group[0] for of, group in groups.items()
    ]


def unfolded(decisions: Iterable[Decision], names: Container[str]) -> set[str]:
    """What those of `names` return of which some channel is not folded."""
    kept = (d.site.node for d in decisions if isinstance(d.outcome, Refusal))
    return {of for node in kept if (of := node.metadata_props.get(CHANNEL_KEY)) and of in names}


def origins(document: Document, decisions: Iterable[Decision]) -> dict[str, Origin]:
    """The nodes of the main graph, by their first output."""
    sites = {decision.site.node: decision.site.name for decision in decisions}
    nodes = ((node, node.outputs[0].name or "") for node in document.main)
    return {of: Origin(node.op_type, sites.get(node) or node.name or of) for node, of in nodes}


def _one(parts: Sequence[SiteReport], name: str) -> SiteReport:
    """The line of a Conv: that of its first part, or of the first that is not folded."""
    first = min(parts, key=lambda part: part.status == "folded")
    return msgspec.structs.replace(
        first,
        node=name,
        form=first.form and f"{first.form} by channel",
        reason=f"{len(parts)} Convs of one channel each: {first.reason}",
        gain=None,
    )
