"""Make the new nodes of one layer: extension, moves, folded node, moves and cut.

    x - Pad -- moves - QuantizeLinear, DequantizeLinear - Conv' - moves -- Slice - y
        extend pack    only for dequantized data                  unpack   cut

What stands before Conv' is left out for a packed input, what stands behind it for a packed output.

Folded weights and biases become initializers; layers that are folded alike share equal ones.
Numbers are compared by content: inlining a function that is called twice copies its constants.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np

from widthfold_onnx.algebra.conv import ConvFold, fold_bias, fold_per_channel, fold_weight
from widthfold_onnx.algebra.layouts import RowLayout
from widthfold_onnx.arrays import Array, Dims
from widthfold_onnx.model.constants import Constant
from widthfold_onnx.model.document import Document, Node, Value
from widthfold_onnx.rewrite.new_nodes import Series, SharedConstants
from widthfold_onnx.rewrite.record import FOLD_KEY, PACKED, describe
from widthfold_onnx.rules.form import Ends, Form
from widthfold_onnx.rules.layers import Layer
from widthfold_onnx.rules.quantization import Parameter, is_single


def append_folded(
    series: Series,
    layer: Layer,
    form: Form,
    ends: Ends,
    constants: FoldedConstants,
) -> Node:
    """Append the new nodes of a layer, with extension, moves and cut at ends without a layout.

    Args:
        series: ends with the data of the layer, in the layout that it reads.
        layer: the layer.
        form: the form that replaces it.
        ends: the layouts in which it reads and returns.
        constants: the folded parameters of the model.

    Returns:
        The folded node.
    """
    if ends.input_layout is None:
        _extend(series, layer, form)
        series.append_moves(form.packing_moves, "fold")
        series.requantize(layer.dequantizer)
    metadata = {FOLD_KEY: msgspec.json.encode(describe(layer, form)).decode()}
    if ends.output_layout is not None:
        metadata |= PACKED
    inputs = [
        _input(series, layer, form, constants, index) for index in range(len(layer.node.inputs))
    ]
    inputs[layer.data_index] = series.value
    domain, op_type, attributes = layer.operator.folded_operator(layer.node, form.fold)
    folded_node = series.append(
        op_type,
        "conv" if layer.spatial_rank else "product",
        inputs,
        attributes,
        metadata,
        domain=domain,
    )
    if ends.output_layout is None:
        series.append_moves(form.unpacking_moves, "unfold")
        surplus = _differing(form.extended_out_shape, layer.output_shape)
        if surplus:
            # A fixed extent is cut to its length; from an open one the surplus is cut at the end.
            series.cut(
                {
                    axis: extent if layer.fixed_shape[axis] is not None else extent - form_extent
                    for axis, (form_extent, extent) in surplus.items()
                }
            )
    return folded_node


def _extend(series: Series, layer: Layer, form: Form) -> None:
    """Extend the data, as the fold needs it, with zeros or the zero point of quantized data."""
    extensions = _differing(form.extended_in_shape, layer.planned_shape)
    if extensions:
        added_positions = {
            i: form_extent - extent for i, (form_extent, extent) in extensions.items()
        }
        quantization = layer.quantization
        zero = None
        if quantization is not None and not quantization.dequantized:
            zero = quantization.zero
        series.extend(added_positions, len(layer.planned_shape), zero)


def _input(
    series: Series,
    layer: Layer,
    form: Form,
    constants: FoldedConstants,
    index: int,
) -> Value | None:
    """Return an input of the folded node: the value of the original, folded if it is a parameter.

    A parameter of integers keeps its DequantizeLinear: the runtime reads the integers, and does not
    quantize floats by itself.
    """
    value, parameter = layer.node.inputs[index], layer.parameters.get(index)
    if parameter is None:
        return value
    numbers = constants.of(layer, form.fold, index)
    if parameter.maker is None:
        return numbers
    scale_and_zero = constants.scale_and_zero(layer, form.fold, parameter)
    # A Conv stores its output channels first, unlike the ConvTranspose that it replaces.
    place = 0 if layer.operator.transposed else parameter.axis
    axis = {"axis": place} if any(parameter.vectors) else {}
    return series.add_before("DequantizeLinear", [numbers, *scale_and_zero], axis)


def _differing(first: Dims, second: Dims) -> dict[int, tuple[int, int]]:
    """Return the axes at which known extents differ, with both extents."""
    pairs = enumerate(zip(first, second, strict=True))
    return {i: (a, b) for i, (a, b) in pairs if a is not None and b is not None and a != b}


class FoldedConstants:
    """The folded parameters of a model."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self.shared = SharedConstants(document)

    def of(self, layer: Layer, fold: ConvFold, index: int) -> Value | None:
        """Return the folded numbers of a parameter.

        Args:
            layer: the layer.
            fold: its fold.
            index: index of the parameter among the inputs of the node.
        """
        constant, inputs = layer.parameters[index].constant, layer.operator.inputs
        numbers = self._document.read(constant)
        if index == inputs.weight:
            return self._shared_constant(layer, fold, constant, folded_weight(layer, numbers, fold))
        if index == inputs.bias:
            return self._shared_constant(layer, fold, constant, folded_bias(layer, numbers, fold))
        if is_single(constant.shape):
            return layer.node.inputs[index]
        return self._shared_constant(layer, fold, constant, folded_vector(layer, numbers, fold))

    def scale_and_zero(
        self, layer: Layer, fold: ConvFold, parameter: Parameter
    ) -> list[Value | None]:
        """Return scale and zero point of a parameter's DequantizeLinear for its folded numbers."""
        assert parameter.maker is not None
        pairs = zip(parameter.maker.inputs[1:], (parameter.scale, parameter.zero), strict=False)
        return [
            value
            if constant is None or is_single(constant.shape)
            else self._shared_constant(
                layer, fold, constant, folded_vector(layer, self._document.read(constant), fold)
            )
            for value, constant in pairs
        ]

    def _shared_constant(
        self, layer: Layer, fold: ConvFold, constant: Constant, numbers: Array
    ) -> Value:
        sharing_key = (layer.op, layer.axes, layer.weight_shape, fold.key)
        name, external = f"{constant.value.name}/widthfold", constant.is_external
        return self.shared.add(
            numbers, name, constant.owner, sharing_key=sharing_key, external=external
        )


def folded_weight(layer: Layer, numbers: Array, fold: ConvFold) -> Array:
    """Fold the numbers of a weight; both sides have the layout in which the nodes store them."""
    operator, node = layer.operator, layer.node
    conv_weight = fold_weight(operator.canonical_weight(numbers, node), fold, layer.filler)
    return operator.stored_weight(conv_weight, node, layer.weight.shape)


def folded_vector(layer: Layer, numbers: Array, fold: ConvFold) -> Array:
    """Return numbers per output channel for the folded node; a single one stays as it is.

    Groups may share their numbers, and so do the matrices of a product.
    """
    if is_single(numbers.shape):
        return numbers
    axis = -2 if layer.weight_on_left and numbers.ndim > 1 else -1
    channels = np.arange(layer.channels[1]) % numbers.shape[axis]
    return np.take(numbers, fold_per_channel(channels, replace(fold, group=layer.group)), axis)


def folded_bias(layer: Layer, numbers: Array, fold: ConvFold) -> Array:
    """Return the bias of the folded node.

    C of a Gemm that is the same at all positions is repeated for every tile; else it is folded
    like the result. A single number stays as it is.
    """
    if layer.operator.bias_per_channel:
        return fold_bias(numbers, fold)
    if numbers.size == 1:
        return numbers
    logical = numbers.reshape((1,) * (2 - numbers.ndim) + numbers.shape)
    if logical.shape[-1 if layer.weight_on_left else -2] == 1:
        return folded_vector(layer, numbers, fold)
    extents = list(logical.shape)
    extents[-2 if layer.weight_on_left else -1] = layer.channels[1]
    layout = RowLayout(fold.out_factor, layer.weight_on_left)
    return layout.pack_array(np.broadcast_to(logical, extents))
