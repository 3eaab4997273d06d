"""Add folded weights and biases as initializers; equal numbers folded alike are shared.

Numbers are compared by content, because inlining a function that is called twice copies its
constants.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from widthfold_onnx.fold import matmul
from widthfold_onnx.fold.conv import ConvFold
from widthfold_onnx.fold.matmul import MatMulFold
from widthfold_onnx.model.constants import Constant
from widthfold_onnx.model.graph import Attributes, Document, Value
from widthfold_onnx.rules.dequantized_product import axis_of
from widthfold_onnx.rules.matmul_site import MatMulSite
from widthfold_onnx.rules.parameter import dequantizer
from widthfold_onnx.rules.quantized_product import is_single, per_channel
from widthfold_onnx.rules.windowed import WindowedSite

Array = npt.NDArray[Any]


class Parameters:
    """All folded parameters of a model."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._shared: dict[tuple[object, ...], Value] = {}

    def of(self, site: WindowedSite, fold: ConvFold, record: str, value: Value) -> Value:
        """Return the input of the folded Conv that replaces an input of the site.

        Args:
            site: the site.
            fold: its fold.
            record: text that distinguishes the fold from others.
            value: a constant; it changes if it is the weight, or has one number per output channel.
        """
        weight = value is site.parameter
        constant = site.weight if weight else site.per_channel.get(value)
        if constant is None:
            return value
        what = f"weight {site.zero.tolist()}" if weight else "per channel"
        return self._share(
            constant,
            f"{what} {record} {site.op} {site.group} {site.axes}",
            lambda array: site.folded(value, array, fold),
        )

    def of_product(self, site: MatMulSite, fold: MatMulFold, record: str, index: int) -> Value:
        """Return an input of a folded product, for an index in `site.parameters`."""
        key = f"{index} {record} {site.left} {site.weight_shape} {_digest(site.zero)}"
        if index == site.weight_index:
            return self._share(
                site.weight,
                f"weight {key}",
                lambda array: matmul.fold_weight(array.reshape(site.weight_shape), fold, site.zero),
            )
        if index in site.beside:
            constant, value = site.beside[index], site.node.inputs[index]
            if value is not None and is_single(constant.shape):
                return value
            return self._share(constant, f"beside {key}", lambda array: per_channel(array, fold))
        rows, columns = site.output
        assert site.addend is not None
        return self._share(
            site.addend,
            f"addend {key} {rows} {columns}",
            lambda array: matmul.fold_addend(array, fold, (rows or 0, columns or 0)),
        )

    def of_dequantizer(
        self, site: MatMulSite, fold: MatMulFold, record: str, index: int
    ) -> tuple[list[Value], Attributes]:
        """Return inputs and attributes of the DequantizeLinear for an input of a folded product.

        Args:
            site: the product.
            fold: its fold.
            record: text that distinguishes the fold from others.
            index: index of the weight or C of the product.
        """
        maker = dequantizer(site.node.inputs[index])
        assert maker is not None
        values = [value for value in maker.inputs if value is not None]
        numbers, *vectors = (self._constant(value) for value in values)
        axis = axis_of(maker, len(numbers.shape))
        spread = [-1 if i == axis else 1 for i in range(len(numbers.shape))]
        arrays = [self._document.read(vector) for vector in vectors]
        # A missing zero point is 0; a single number has no axis.
        zero = [a.reshape(spread if a.size > 1 else ()) for a in arrays][1:] or [np.zeros((), "i1")]
        key = f"{record} {site.left} {site.weight_shape} {axis} {_digest(zero[0])}"

        def repeated(array: Array) -> Array:
            return array if array.size == 1 else matmul.fold_per_channel(array, fold, 0)

        def placed(array: Array) -> Array:
            return matmul.fold_weight(array.reshape(site.weight_shape), fold, zero[0])

        of_weight = index == site.weight_index
        what, make = ("integers", placed) if of_weight else ("added integers", repeated)
        folded = [self._share(numbers, f"{what} {key}", make)]
        several = any(array.size > 1 for array in arrays)
        for value, vector in zip(values[1:], vectors, strict=True):
            folded.append(self._share(vector, f"vector {key}", repeated) if several else value)
        return folded, {"axis": axis} if several else {}

    def _constant(self, value: Value) -> Constant:
        found = self._document.constant(value)
        assert isinstance(found, Constant)  # else the site would not have been read
        return found

    def _share(self, constant: Constant, what: str, make: Callable[[Array], Array]) -> Value:
        array = self._document.read(constant)
        content = (array.dtype, array.shape, _digest(array))
        key = (what, constant.owner, *content)
        if key not in self._shared:
            self._shared[key] = self._document.add_constant(
                make(array),
                f"{constant.value.name}/widthfold",
                constant.owner,
                external=constant.is_external,
            )
        return self._shared[key]


def _digest(array: Array) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()
