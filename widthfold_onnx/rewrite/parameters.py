"""Folded weights and biases as initializers; numbers that are folded twice alike are shared.

Alike by content: a constant of a function that is called twice was made two when it was inlined.
"""

from __future__ import annotations

import hashlib

from widthfold_onnx.fold.conv import ConvFold, fold_bias, fold_weight
from widthfold_onnx.model.constants import Constant
from widthfold_onnx.model.graph import Document, Value
from widthfold_onnx.rules.base import LinearSite


class Parameters:
    """All folded parameters of a model."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._shared: dict[tuple[object, ...], Value] = {}

    def of(self, site: LinearSite, fold: ConvFold, record: str) -> dict[str, Value]:
        """Weight and, if there is one, bias of a site; `record` tells its fold from others."""
        parameters = {"weight": self._share(site.weight, "weight", record, site, fold)}
        if site.bias is not None:
            parameters["bias"] = self._share(site.bias, "bias", record, site, fold)
        return parameters

    def _share(
        self, constant: Constant, what: str, record: str, site: LinearSite, fold: ConvFold
    ) -> Value:
        array = self._document.read(constant)
        content = (array.dtype, array.shape, hashlib.sha256(array.tobytes()).digest())
        key = (what, constant.owner, *content, record, site.op, site.group, site.axes)
        if key not in self._shared:
            weight = what == "weight"
            folded = fold_weight(site.canonical(array), fold) if weight else fold_bias(array, fold)
            self._shared[key] = self._document.add_constant(
                folded,
                f"{constant.value.name}/widthfold",
                constant.owner,
                external=constant.is_external,
            )
        return self._shared[key]
