"""Read the layers of a model under a draft, and choose the form of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from widthfold_onnx.errors import UsageError
from widthfold_onnx.model.linking import NodeName
from widthfold_onnx.options import EVERYTHING, FoldOptions, NonFinite, Selection
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rewrite.padding import PaddableChains, paddable_chains
from widthfold_onnx.rewrite.reading import ALREADY_FOLDED, Reading
from widthfold_onnx.rules.form import Answer, Form
from widthfold_onnx.rules.layers import Layer, Site
from widthfold_onnx.text import quoted

Choose = Callable[[Layer], Answer]


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


def decisions_of(reading: Reading, selection: Selection, choose: Choose) -> list[Decision]:
    """Return one decision for every site of the model, in graph order.

    Args:
        reading: the model.
        selection: the sites that are read.
        choose: returns the form or refusal of a site that can be read.

    Raises:
        UsageError: a node pattern matches no site, or an assumed input shape does not fit.
    """
    return [
        Decision(site, None, layer)
        if isinstance(layer, Refusal)
        else Decision(site, layer, choose(layer))
        for site, layer in read_sites(reading, selection)
    ]


def read_sites(
    reading: Reading, selection: Selection = EVERYTHING
) -> Iterator[tuple[Site, Layer | Refusal]]:
    """Yield every site in graph order, read or refused.

    Raises:
        UsageError: a node pattern matches no site, or an assumed input shape does not fit.
    """
    for pattern in (*selection.nodes, *selection.skip):
        if not any(fnmatchcase(site.name, pattern) for site in reading.sites):
            raise UsageError(f"no layer is named {quoted(pattern)}; `inspect` lists them")
    for site in reading.sites:
        if reading.is_folded:
            yield site, ALREADY_FOLDED
        elif not selection.includes(site.name):
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
        if all(options.selection.includes(layer.node) for layer in chain.layers)
    ]
    return replace(every_chain, chains=selected)
