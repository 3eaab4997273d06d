"""Add folded weights and biases as initializers; layers that are folded alike share equal ones.

Numbers are compared by content, because inlining a function that is called twice copies its
constants.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from widthfold_onnx.algebra.conv import ConvFold, fold_per_channel, fold_weight
from widthfold_onnx.algebra.layouts import RowLayout
from widthfold_onnx.arrays import Array
from widthfold_onnx.model.graph.constants import Constant
from widthfold_onnx.model.graph.document import Document, Value
from widthfold_onnx.rewrite.new_nodes import SharedConstants
from widthfold_onnx.rules.match.quantization import Parameter, is_single
from widthfold_onnx.rules.match.sites import LinearSite


class Parameters:
    """All folded parameters of a model."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._shared = SharedConstants(document)

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
            return self._added(site, fold, constant, folded_weight(site, numbers, fold))
        if index == inputs.bias:
            return self._added(site, fold, constant, folded_bias(site, numbers, fold))
        if is_single(constant.shape):
            return site.node.inputs[index]
        return self._added(site, fold, constant, folded_vector(site, numbers, fold))

    def beside(self, site: LinearSite, fold: ConvFold, parameter: Parameter) -> list[Value | None]:
        """Return scale and zero point of a parameter's DequantizeLinear for its folded numbers."""
        assert parameter.maker is not None
        pairs = zip(parameter.maker.inputs[1:], (parameter.scale, parameter.zero), strict=False)
        return [
            value
            if constant is None or is_single(constant.shape)
            else self._added(
                site, fold, constant, folded_vector(site, self._document.read(constant), fold)
            )
            for value, constant in pairs
        ]

    def _added(self, site: LinearSite, fold: ConvFold, constant: Constant, folded: Array) -> Value:
        origin = (site.op, site.axes, site.weight_shape, fold.key)
        name, external = f"{constant.value.name}/widthfold", constant.is_external
        return self._shared.add(folded, name, constant.owner, origin=origin, external=external)


def folded_weight(site: LinearSite, numbers: Array, fold: ConvFold) -> Array:
    """Return the weight that the folded node stores, for the stored numbers of the original."""
    wide = fold_weight(site.operator.canonical(numbers, site.node), fold, site.zero)
    return site.operator.stored(wide, site.node, site.weight.shape)


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
    full = list(logical.shape)
    full[-2 if site.weight_on_left else -1] = site.channels[1]
    layout = RowLayout(fold.out_factor, site.weight_on_left)
    return layout.packed(np.broadcast_to(logical, full))
