"""Make the new nodes of one site: extension, moves, folded node, moves and cut.

    x - Pad -- moves - QuantizeLinear, DequantizeLinear - Conv' - moves -- Slice - y
        extend fold    only for dequantized data                  unfold   cut

What stands before Conv' is left out for a packed input, what stands behind it for a packed output.

Folded weights and biases become initializers; layers that are folded alike share equal ones.
Numbers are compared by content: inlining a function that is called twice copies its constants.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np

from widthfold_onnx.algebra.conv import ConvFold, fold_per_channel, fold_weight
from widthfold_onnx.algebra.layouts import RowLayout
from widthfold_onnx.arrays import Array, Dims
from widthfold_onnx.model.constants import Constant
from widthfold_onnx.model.document import Document, Node, Value
from widthfold_onnx.rewrite.new_nodes import Series, SharedConstants
from widthfold_onnx.rewrite.record import FOLD_KEY, PACKED, describe
from widthfold_onnx.rules.form import Ends, Form
from widthfold_onnx.rules.quantization import Parameter, is_single
from widthfold_onnx.rules.sites import LinearSite


def append_folded(
    series: Series,
    site: LinearSite,
    form: Form,
    ends: Ends,
    parameters: Parameters,
) -> Node:
    """Append the new nodes of a site, with extension, moves and cut at ends without a layout.

    Args:
        series: ends with the data of the site, in the layout that it reads.
        site: the site.
        form: the form that replaces it.
        ends: the layouts in which it reads and returns.
        parameters: the folded weights of the model.

    Returns:
        The folded node.
    """
    if ends.input_layout is None:
        _extend(series, site, form)
        series.steps(form.folding, "fold")
        series.requantize(site.dequantizer)
    metadata = {FOLD_KEY: msgspec.json.encode(describe(site, form)).decode()}
    if ends.output_layout is not None:
        metadata |= PACKED
    inputs = [
        _input(series, site, form, parameters, index) for index in range(len(site.node.inputs))
    ]
    domain, op_type, attributes = site.operator.folded_operator(site.node, form.fold)
    folded_node = series.append(
        op_type,
        "conv" if site.rank else "product",
        {str(index): value for index, value in enumerate(inputs[site.data_index + 1 :])},
        attributes,
        metadata,
        first=inputs[: site.data_index],
        domain=domain,
    )
    if ends.output_layout is None:
        series.steps(form.unfolding, "unfold")
        surplus = _differing(form.out_shape, site.output)
        if surplus:
            pairs = surplus.items()
            # A fixed extent is cut to its length; from an open one the surplus is cut at the end.
            is_static = {i: site.static[i] is not None for i in surplus}
            series.cut(
                {
                    i: extent if is_static[i] else extent - form_extent
                    for i, (form_extent, extent) in pairs
                }
            )
    return folded_node


def _extend(series: Series, site: LinearSite, form: Form) -> None:
    """Extend the data, as the fold needs it, with zeros or the zero point of quantized data."""
    extensions = _differing(form.in_shape, site.planned)
    if extensions:
        ends = {i: form_extent - extent for i, (form_extent, extent) in extensions.items()}
        integers = site.quantization
        zero = None if integers is None or integers.dequantized else integers.zero
        series.extend(ends, len(site.planned), zero)


def _input(
    series: Series,
    site: LinearSite,
    form: Form,
    parameters: Parameters,
    index: int,
) -> Value | None:
    """Return an input of the folded node: the value of the original, folded if it is a parameter.

    A parameter of integers keeps its DequantizeLinear: the runtime reads the integers, and does not
    quantize floats by itself.
    """
    value, parameter = site.node.inputs[index], site.parameters.get(index)
    if parameter is None:
        return value
    numbers = parameters.of(site, form.fold, index)
    if parameter.maker is None:
        return numbers
    scale_and_zero = parameters.scale_and_zero(site, form.fold, parameter)
    # A Conv stores its output channels first, unlike the ConvTranspose that it replaces.
    place = 0 if site.operator.transposed else parameter.axis
    axis = {"axis": place} if any(parameter.vectors) else {}
    return series.add_before("DequantizeLinear", [numbers, *scale_and_zero], axis)


def _differing(first: Dims, second: Dims) -> dict[int, tuple[int, int]]:
    """Return the axes at which known extents differ, with both extents."""
    pairs = enumerate(zip(first, second, strict=True))
    return {i: (a, b) for i, (a, b) in pairs if a is not None and b is not None and a != b}


class Parameters:
    """All folded parameters of a model."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._constants = SharedConstants(document)

    def of(self, site: LinearSite, fold: ConvFold, index: int) -> Value | None:
        """Return the folded numbers of a parameter.

        Args:
            site: the site.
            fold: its fold.
            index: index of the parameter among the inputs of the node.
        """
        constant, inputs = site.parameters[index].constant, site.operator.inputs
        numbers = self._document.read(constant)
        if index == inputs.weight:
            return self._shared_constant(site, fold, constant, folded_weight(site, numbers, fold))
        if index == inputs.bias:
            return self._shared_constant(site, fold, constant, folded_bias(site, numbers, fold))
        if is_single(constant.shape):
            return site.node.inputs[index]
        return self._shared_constant(site, fold, constant, folded_vector(site, numbers, fold))

    def scale_and_zero(
        self, site: LinearSite, fold: ConvFold, parameter: Parameter
    ) -> list[Value | None]:
        """Return scale and zero point of a parameter's DequantizeLinear for its folded numbers."""
        assert parameter.maker is not None
        pairs = zip(parameter.maker.inputs[1:], (parameter.scale, parameter.zero), strict=False)
        return [
            value
            if constant is None or is_single(constant.shape)
            else self._shared_constant(
                site, fold, constant, folded_vector(site, self._document.read(constant), fold)
            )
            for value, constant in pairs
        ]

    def _shared_constant(
        self, site: LinearSite, fold: ConvFold, constant: Constant, numbers: Array
    ) -> Value:
        sharing_key = (site.op, site.axes, site.weight_shape, fold.key)
        name, external = f"{constant.value.name}/widthfold", constant.is_external
        return self._constants.add(
            numbers, name, constant.owner, sharing_key=sharing_key, external=external
        )


def folded_weight(site: LinearSite, numbers: Array, fold: ConvFold) -> Array:
    """Fold the numbers of a weight; both sides have the layout in which the nodes store them."""
    conv_weight = fold_weight(site.operator.canonical(numbers, site.node), fold, site.zero)
    return site.operator.stored(conv_weight, site.node, site.weight.shape)


def folded_vector(site: LinearSite, numbers: Array, fold: ConvFold) -> Array:
    """Return numbers per output channel for the folded node; a single one stays as it is.

    Groups may share their numbers, and so do the matrices of a product.
    """
    if is_single(numbers.shape):
        return numbers
    axis = -2 if site.weight_on_left and numbers.ndim > 1 else -1
    channels = np.arange(site.channels[1]) % numbers.shape[axis]
    return np.take(numbers, fold_per_channel(channels, replace(fold, group=site.group)), axis)


def folded_bias(site: LinearSite, numbers: Array, fold: ConvFold) -> Array:
    """Return the bias of the folded node.

    C of a Gemm that is the same at all positions is repeated for every tile; else it is folded
    like the result. A single number stays as it is.
    """
    if site.operator.bias_per_channel:
        return fold_per_channel(numbers, fold)
    if numbers.size == 1:
        return numbers
    logical = numbers.reshape((1,) * (2 - numbers.ndim) + numbers.shape)
    if logical.shape[-1 if site.weight_on_left else -2] == 1:
        return folded_vector(site, numbers, fold)
    extents = list(logical.shape)
    extents[-2 if site.weight_on_left else -1] = site.channels[1]
    layout = RowLayout(fold.out_factor, site.weight_on_left)
    return layout.pack_array(np.broadcast_to(logical, extents))
