"""Folded weights and biases as initializers; numbers that are folded twice alike are shared.

Alike by content: a constant of a function that is called twice was made two when it was inlined.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from widthfold_onnx.fold import matmul
from widthfold_onnx.fold.conv import ConvFold, fold_per_channel, fold_weight
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

    def of(self, site: WindowedSite, fold: ConvFold, record: str) -> dict[str, Value]:
        """Weight and, if there is one, bias of a site; `record` tells its fold from others."""
        key = f"{record} {site.op} {site.group} {site.axes}"
        parameters = {
            "weight": self._share(
                site.weight,
                f"weight {key}",
                lambda array: fold_weight(site.canonical(array), fold, site.zero),
            )
        }
        if site.bias is not None:
            parameters["bias"] = self._share(
                site.bias, f"bias {key}", lambda array: fold_per_channel(array, fold)
            )
        return parameters

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
        assert rows is not None
        assert columns is not None
        addend = self._share(
            site.addend,
            f"addend {key} {rows} {columns}",
            lambda array: matmul.fold_addend(array, fold, (rows, columns)),
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
