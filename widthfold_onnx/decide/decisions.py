"""Decide what every layer of a model becomes; the result is a plan, and nothing is changed.

A plan is drafted first: frozen weights, companions, padded channels. Layers are read under the
draft, and a function chooses the form of each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property

from widthfold_onnx.errors import UsageError
from widthfold_onnx.model.linking import NodeName
from widthfold_onnx.model.loader import Model
from widthfold_onnx.options import Companion, FoldOptions, NonFinite
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rewrite.draft import Draft, first_draft
from widthfold_onnx.rewrite.exchange import Match
from widthfold_onnx.rewrite.padding import PaddableChains, paddable_chains
from widthfold_onnx.rewrite.plan import (
    Plan,
    plan_of,
)
from widthfold_onnx.rewrite.reading import ALREADY_FOLDED, Reading
from widthfold_onnx.rules.form import Answer, Form
from widthfold_onnx.rules.layers import Layer, Site
from widthfold_onnx.text import quoted

Choose = Callable[[Layer], Answer]


@dataclass(frozen=True)
class Drafting:
    """Drafts the plan of one model, and reads the model under a draft.

    Attributes:
        model: the model.
        fold_options: select the layers, and limit their forms.
    """

    model: Model
    fold_options: FoldOptions

    @cached_property
    def base_plan(self) -> Plan:
        """A plan that freezes weights if the options ask for it, and does nothing else.

        Raises:
            UsageError: sizes are to be fixed, and none are given.
        """
        return plan_of(first_draft(self.model, self.fold_options))

    @property
    def unchanged(self) -> Plan:
        """The plan that changes nothing, with the sizes and limits of the options."""
        return plan_of(Draft.unchanged(self.fold_options))

    def matches(self, names: Collection[Companion]) -> list[Match]:
        """Return the nodes that companions match, in the model with the frozen weights."""
        return self.base_plan.as_draft.matches(self.model, names)

    def with_companions(self, matches: Sequence[Match]) -> Plan:
        """Return a plan in which companions replace all matched nodes that can be exchanged."""
        return plan_of(self.base_plan.as_draft.with_companions(matches))

    def reading(self, draft: Plan) -> Reading:
        """Read the model under a draft."""
        return Reading.of(self.model, draft.as_draft)

    def paddable_chains(self, reading: Reading, multiple: int) -> PaddableChains:
        """Return what `selected_chains` returns."""
        return selected_chains(reading, self.fold_options, multiple)

    def plan(self, draft: Plan, choose: Choose) -> Plan:
        """Return a draft with the form that a function chooses for each layer."""
        decisions = decisions_of(self.reading(draft), self.fold_options, choose)
        return plan_of(draft.as_draft.with_forms(forms_of(decisions)))


@dataclass(frozen=True)
class Decision:
    """A site with its form, or with the reason why it has none.

    Attributes:
        site: the node.
        layer: the site with weight and geometry; None where it could not or need not be read.
        answer: the form, or the reason why there is none.
    """

    site: Site
    layer: Layer | None
    answer: Answer

    @property
    def name(self) -> NodeName:
        """The name of the layer."""
        return self.site.node_name


def decisions_of(reading: Reading, options: FoldOptions, choose: Choose) -> list[Decision]:
    """Return one decision for every site of the model, in graph order.

    Args:
        reading: the model.
        options: which sites.
        choose: returns the form or refusal of a site that can be read.

    Raises:
        UsageError: a node pattern matches no site, or an assumed input shape does not fit.
    """
    return [
        Decision(site, None, layer)
        if isinstance(layer, Refusal)
        else Decision(site, layer, choose(layer))
        for site, layer in read_sites(reading, options)
    ]


def read_sites(reading: Reading, options: FoldOptions) -> Iterator[tuple[Site, Layer | Refusal]]:
    """Yield every site in graph order, read or refused.

    Raises:
        UsageError: a node pattern matches no site, or an assumed input shape does not fit.
    """
    for pattern in (*options.nodes, *options.skip):
        if not any(fnmatchcase(site.name, pattern) for site in reading.sites):
            raise UsageError(f"no layer is named {quoted(pattern)}; `inspect` lists them")
    for site in reading.sites:
        if reading.is_folded:
            yield site, ALREADY_FOLDED
        elif not is_selected(site.name, options):
            yield site, Refusal(Code.NOT_SELECTED, "left alone by --nodes or --skip")
        else:
            yield site, reading.layer(site)


def forms_of(decisions: Iterable[Decision]) -> dict[NodeName, Form]:
    """Return the forms that decisions give to layers."""
    return {d.name: d.answer for d in decisions if isinstance(d.answer, Form)}


def selected_chains(reading: Reading, options: FoldOptions, multiple: int) -> PaddableChains:
    """Return the selected chains that can be padded to a multiple, and what stops the others.

    Args:
        reading: the model, not padded yet. Zero rows make NaN of an Inf, so no chain is padded
            if these are to stay where they were.
        options: select the layers.
        multiple: divides the padded channels.
    """
    if reading.is_folded or options.nonfinite is NonFinite.REFUSE:
        return PaddableChains(multiple, [], [])
    every_chain = paddable_chains(reading.document, multiple)
    selected = [
        chain
        for chain in every_chain.chains
        if all(is_selected(layer.node, options) for layer in chain.layers)
    ]
    return replace(every_chain, chains=selected)


def is_selected(name: str, options: FoldOptions) -> bool:
    """Check whether the options let a node be changed."""
    is_named = not options.nodes or any(fnmatchcase(name, p) for p in options.nodes)
    return is_named and not any(fnmatchcase(name, p) for p in options.skip)
