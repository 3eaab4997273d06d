"""Build the nodes that replace a site: extension, moves, the folded node, moves, cut.

DequantizeLinear nodes stay next to the folded node, and moves of dequantized data are followed by
a quantizer pair, for the reason given in `rules.match.dequantized`.
"""

from __future__ import annotations

import msgspec

from widthfold_onnx.model.graph.document import Node, Value
from widthfold_onnx.model.proto.dims import Dims
from widthfold_onnx.rewrite.chain import Chain
from widthfold_onnx.rewrite.parameters import Parameters
from widthfold_onnx.rewrite.record import FOLD_KEY, PACKED, describe
from widthfold_onnx.rules.forms.form import Ends, Reformulation
from widthfold_onnx.rules.match.site import LinearSite


def append_folded(
    chain: Chain,
    site: LinearSite,
    form: Reformulation,
    ends: Ends,
    parameters: Parameters,
) -> Node:
    """Append the new nodes of a site, with extension, moves and cut at ends without a layout.

    Args:
        chain: ends with the data of the site, in the layout that it reads.
        site: the site.
        form: the form that replaces it.
        ends: the layouts in which it reads and returns.
        parameters: the folded weights of the model.

    Returns:
        The folded node.
    """
    if ends.reads is None:
        _extend(chain, site, form)
        chain.steps(form.folding, "fold")
        chain.requantize(site.dequantizer)
    metadata = {FOLD_KEY: msgspec.json.encode(describe(site, form)).decode()}
    if ends.returns is not None:
        metadata |= PACKED
    inputs = [
        _input(chain, site, form, parameters, index) for index in range(len(site.node.inputs))
    ]
    domain, op_type, attributes = site.operator.folded(site.node, form.fold)
    new = chain.append(
        op_type,
        "conv" if site.rank else "product",
        {str(index): value for index, value in enumerate(inputs[site.data_index + 1 :])},
        attributes,
        metadata,
        first=inputs[: site.data_index],
        domain=domain,
    )
    if ends.returns is None:
        chain.steps(form.unfolding, "unfold")
        surplus = _differing(form.out_shape, site.output)
        if surplus:
            pairs = surplus.items()
            fixed = {i: site.static[i] is not None for i in surplus}
            chain.cut({i: actual if fixed[i] else actual - wanted for i, (wanted, actual) in pairs})
    return new


def _extend(chain: Chain, site: LinearSite, form: Reformulation) -> None:
    """Extend the data as the fold needs by zeros, or by the zero point of quantized data."""
    missing = _differing(form.in_shape, site.planned)
    if missing:
        ends = {i: wanted - actual for i, (wanted, actual) in missing.items()}
        known = site.quantization
        zero = None if known is None or known.dequantized else known.zero
        chain.extend(ends, len(site.planned), zero)


def _input(
    chain: Chain,
    site: LinearSite,
    form: Reformulation,
    parameters: Parameters,
    index: int,
) -> Value | None:
    """Return an input of the folded node: that of the original, folded if it is a parameter.

    A runtime still reads the integers behind a DequantizeLinear, and does not quantize floats in a
    way of its own.
    """
    value, parameter = site.node.inputs[index], site.parameters.get(index)
    if parameter is None:
        return value
    numbers = parameters.of(site, form.fold, index)
    if parameter.maker is None:
        return numbers
    others = parameters.beside(site, form.fold, parameter)
    # A Conv stores its output channels first, unlike the ConvTranspose that it replaces.
    place = 0 if site.operator.transposed else parameter.axis
    axis = {"axis": place} if any(parameter.vectors) else {}
    return chain.beside("DequantizeLinear", [numbers, *others], axis)


def _differing(wanted: Dims, actual: Dims) -> dict[int, tuple[int, int]]:
    """Return the axes at which known extents differ, with both extents."""
    pairs = enumerate(zip(wanted, actual, strict=True))
    return {i: (w, a) for i, (w, a) in pairs if w is not None and a is not None and w != a}
