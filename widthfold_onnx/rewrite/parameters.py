"""Add folded weights and biases as initializers; equal numbers folded alike are shared.

Numbers are compared by content, because inlining a function that is called twice copies its
constants.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from widthfold_onnx.algebra.conv import ConvFold
from widthfold_onnx.arrays import Array
from widthfold_onnx.model.graph.constants import Constant
from widthfold_onnx.model.graph.document import Document, Value
from widthfold_onnx.rules.match.parameter import Parameter, is_single
from widthfold_onnx.rules.match.site import LinearSite


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
            what, make = f"weight {_digest(site.zero)}", site.folded_weight
        elif index == inputs.bias:
            what, make = f"bias {site.output[-2:]}", site.folded_bias
        else:
            what, make = "per channel", site.folded_vector
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
            else self._share(site, numbers, "per channel", fold, site.folded_vector)
            for value, numbers in pairs
        ]

    def _share(
        self,
        site: LinearSite,
        constant: Constant,
        what: str,
        fold: ConvFold,
        make: Callable[[Array, ConvFold], Array],
    ) -> Value:
        array = self._document.read(constant)
        of_site = (site.op, site.left, site.group, site.axes, site.weight_shape)
        content = (array.dtype, array.shape, _digest(array))
        key = (what, fold.key, of_site, constant.owner, *content)
        if key not in self._shared:
            self._shared[key] = self._document.add_constant(
                make(array, fold),
                f"{constant.value.name}/widthfold",
                constant.owner,
                external=constant.is_external,
            )
        return self._shared[key]


def _digest(array: Array) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()
