"""Folded weights and biases as initializers; numbers that are folded twice alike are shared.

Alike by content: a constant of a function that is called twice was made two when it was inlined.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from widthfold_onnx.fold import matmul
from widthfold_onnx.fold.conv import ConvFold
from widthfold_onnx.fold.matmul import MatMulFold
from widthfold_onnx.model.constants import Constant
from widthfold_onnx.model.graph import Document, Value
from widthfold_onnx.rules.matmul_site import MatMulSite
from widthfold_onnx.rules.windowed import WindowedSite

Array = npt.NDArray[Any]


class Parameters:
    """All folded parameters of a model."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._shared: dict[tuple[object, ...], Value] = {}

    def of(self, site: WindowedSite, fold: ConvFold, record: str, value: Value) -> Value:
        """What the folded Conv of a site reads in the place of a value that it reads itself.

        Args:
            site: the site.
            fold: its fold.
            record: tells the fold from others.
            value: a constant that changes if it is the weight, or there once per output channel.
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

    def of_product(
        self, site: MatMulSite, fold: MatMulFold, record: str
    ) -> tuple[Value, Value | None]:
        """Weight and, if there is one, C of a product."""
        key = f"{record} {site.left} {site.weight_shape}"
        weight = self._share(
            site.weight,
            f"weight {key}",
            lambda array: matmul.fold_weight(array.reshape(site.weight_shape), fold),
        )
        if site.addend is None:
            return weight, None
        rows, columns = site.output
        addend = self._share(
            site.addend,
            f"addend {key} {rows} {columns}",
            lambda array: matmul.fold_addend(array, fold, (rows or 0, columns or 0)),
        )
        return weight, addend

    def _share(self, constant: Constant, what: str, make: Callable[[Array], Array]) -> Value:
        array = self._document.read(constant)
        content = (array.dtype, array.shape, hashlib.sha256(array.tobytes()).digest())
        key = (what, constant.owner, *content)
        if key not in self._shared:
            self._shared[key] = self._document.add_constant(
                make(array),
                f"{constant.value.name}/widthfold",
                constant.owner,
                external=constant.is_external,
            )
        return self._shared[key]
