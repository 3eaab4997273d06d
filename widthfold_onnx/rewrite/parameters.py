"""Add folded weights and biases as initializers; equal numbers folded alike are shared.

Numbers are compared by content, because inlining a function that is called twice copies its
constants.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from widthfold_onnx.algebra.conv import ConvFold, fold_per_channel, fold_weight
from widthfold_onnx.algebra.layouts import RowLayout
from widthfold_onnx.arrays import Array
from widthfold_onnx.model.graph.constants import Constant
from widthfold_onnx.model.graph.document import Document, Value
from widthfold_onnx.rules.match.quantization import Parameter, is_single
from widthfold_onnx.rules.match.sites import LinearSite


class Parameters:
    """All folded parameters of a model."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._shared: dict[tuple[object, ...], Value] = {}

    def of(self, site: LinearSite, fold: ConvFold, index: int) -> Value:
        """Return the folded numbers of a parameter.

        Args:
            site: the site.
            fold: its fold.
            index: index of the parameter among the inputs of the node.
        """
        constant, inputs = site.parameters[index].constant, site.operator.inputs
        if index == inputs.weight:
            what, make = f"weight {_digest(site.zero)}", folded_weight
        elif index == inputs.bias:
            what, make = f"bias {site.output[-2:]}", folded_bias
        else:
            what, make = "per channel", folded_vector
            if is_single(constant.shape):
                value = site.node.inputs[index]
                assert value is not None
                return value
        return self._share(site, constant, what, fold, make)

    def beside(self, site: LinearSite, fold: ConvFold, parameter: Parameter) -> list[Value | None]:
        """Return scale and zero point of a parameter's DequantizeLinear for its folded numbers."""
        assert parameter.maker is not None
        pairs = zip(parameter.maker.inputs[1:], (parameter.scale, parameter.zero), strict=False)
        return [
            value
            if numbers is None or is_single(numbers.shape)
            else self._share(site, numbers, "per channel", fold, folded_vector)
            for value, numbers in pairs
        ]

    def _share(
        self,
        site: LinearSite,
        constant: Constant,
        what: str,
        fold: ConvFold,
        make: Callable[[LinearSite, Array, ConvFold], Array],
    ) -> Value:
        array = self._document.read(constant)
        of_site = (
            site.op,
            site.weight_on_left,
            site.group,
            site.matrices,
            site.axes,
            site.weight_shape,
        )
        content = (array.dtype, array.shape, _digest(array))
        key = (what, fold.key, of_site, constant.owner, *content)
        if key not in self._shared:
            self._shared[key] = self._document.add_constant(
                make(site, array, fold),
                f"{constant.value.name}/widthfold",
                constant.owner,
                external=constant.is_external,
            )
        return self._shared[key]


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


def _digest(array: Array) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()
