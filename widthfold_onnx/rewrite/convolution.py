"""Build the nodes of a folded Conv: extension, moves, the wider Conv, moves, cut.

DequantizeLinear nodes stay next to the Conv, for the reason given in `rules.dequantized`.
"""

from __future__ import annotations

from widthfold_onnx.fold.conv import ConvFold
from widthfold_onnx.model.declared import Dims
from widthfold_onnx.model.graph import Node, Value
from widthfold_onnx.rewrite.emit import Chain
from widthfold_onnx.rewrite.parameters import Parameters
from widthfold_onnx.rewrite.record import FOLD_KEY, PACKED, encoded, record_of
from widthfold_onnx.rules.base import Ends
from widthfold_onnx.rules.windowed import FOLDED_OPS, WindowedSite
from widthfold_onnx.rules.windowed_form import WindowedForm


def append_conv(
    chain: Chain,
    site: WindowedSite,
    form: WindowedForm,
    ends: Ends,
    parameters: Parameters,
) -> Node:
    """Append the new nodes of a site, with extension, moves and cut at ends without a state.

    Args:
        chain: ends with the data of the site, in the state that it reads.
        site: the Conv or ConvTranspose.
        form: the form that replaces it.
        ends: the states in which it reads and returns.
        parameters: the folded weights of the model.

    Returns:
        The folded Conv.
    """
    fold, lift = form.fold, form.fold.lift
    if ends.reads is None:
        _extend(chain, site, form)
        chain.steps(form.folding, "fold")
        chain.requantize(site.dequantizer)
    record = encoded(record_of(site, form))
    metadata = {FOLD_KEY: record}
    if ends.returns is not None:
        metadata |= PACKED
    conv = chain.add(
        FOLDED_OPS[site.op],
        "conv",
        _inputs(chain, site, fold, parameters, record),
        {
            "dilations": [1] * lift + [a.dilation for a in fold.axes],
            "group": fold.new_group,
            "kernel_shape": fold.kernel,
            "pads": [0] * lift
            + [a.pad_begin for a in fold.axes]
            + [0] * lift
            + [a.pad_end for a in fold.axes],
            "strides": [1] * lift + [a.stride for a in fold.axes],
        },
        metadata,
    )
    if ends.returns is None:
        chain.steps(form.unfolding, "unfold")
        surplus = _differing(form.out_shape, site.output)
        if surplus:
            chain.cut({i: actual for i, (_, actual) in surplus.items()})
    return conv


def _extend(chain: Chain, site: WindowedSite, form: WindowedForm) -> None:
    """Extend the data as the fold needs by zeros, or by the zero point of quantized data."""
    missing = _differing(form.in_shape, site.planned)
    if missing:
        ends = {i: wanted - actual for i, (wanted, actual) in missing.items()}
        known = site.quantization
        zero = None if known is None or known.dequantized else known.zero
        chain.extend(ends, len(site.planned), zero)


def _inputs(
    chain: Chain, site: WindowedSite, fold: ConvFold, parameters: Parameters, record: str
) -> dict[str, Value | None]:
    """Return the inputs of the folded Conv besides the data: those of the original, folded."""
    inputs: dict[str, Value | None] = {}
    for index, value in enumerate(site.node.inputs):
        if index == site.data_index:
            continue
        leaves = site.leaves(value)
        given = [
            None if leaf is None else parameters.of(site, fold, record, leaf) for leaf in leaves
        ]
        if leaves == [value]:
            inputs[f"{index}"] = given[0]
        else:
            axis = {"axis": 0} if any(leaf in site.per_channel for leaf in leaves[1:]) else {}
            inputs[f"{index}"] = chain.beside("DequantizeLinear", given, axis)
    return inputs


def _differing(wanted: Dims, actual: Dims) -> dict[int, tuple[int, int]]:
    """Return the axes at which known extents differ, with both extents."""
    pairs = enumerate(zip(wanted, actual, strict=True))
    return {i: (w, a) for i, (w, a) in pairs if w is not None and a is not None and w != a}
