"""Apply one reformulation: extend - fold - Conv - unfold - cut, in place of the Conv.

The Conv keeps its name, its output tensor keeps its name; every new node says in its metadata
from which output it comes (`ORIGIN_KEY`), the Conv also how it was folded (`FOLD_KEY`).
"""

from __future__ import annotations

import msgspec

from widthfold_onnx.fold.conv import ConvFold, fold_bias, fold_weight
from widthfold_onnx.model.graph import Constant, Document, Value
from widthfold_onnx.rewrite.emit import Chain
from widthfold_onnx.rewrite.record import FOLD_KEY, record_of
from widthfold_onnx.rules.base import ConvSite, Reformulation


class Engine:
    """Applies reformulations to a document; a weight folded twice the same way is shared."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._folded: dict[tuple[str, str, str], Value] = {}

    def apply(self, site: ConvSite, plan: Reformulation) -> None:
        """Replace the site's node."""
        fold, node = plan.fold, site.node
        data, lift = node.inputs[0], fold.lift
        assert data is not None
        chain = Chain(self._document, data, node)
        rank = len(site.planned)
        missing = {
            i: wanted - actual
            for i, (actual, wanted) in enumerate(zip(site.planned, plan.in_shape, strict=True))
            if actual is not None and wanted is not None and wanted > actual
        }
        if missing:
            chain.extend(missing, rank)
        chain.steps(plan.input.steps(digit_major=fold.digit_major), "fold")
        record = msgspec.json.encode(record_of(site, plan)).decode()
        conv = chain.add(
            "Conv",
            "conv",
            self._parameters(site, fold, record),
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
            {FOLD_KEY: record},
        )
        chain.steps(plan.output.steps(digit_major=fold.digit_major, inverse=True), "unfold")
        surplus = {
            i: actual
            for i, (actual, had) in enumerate(zip(site.output, plan.out_shape, strict=True))
            if actual is not None and had is not None and had > actual
        }
        if surplus:
            chain.cut(surplus)
        self._document.splice(node, chain.nodes, conv)

    def _parameters(self, site: ConvSite, fold: ConvFold, record: str) -> dict[str, Value]:
        parameters = {"weight": self._share(site.weight, "weight", record, site, fold)}
        if site.bias is not None:
            parameters["bias"] = self._share(site.bias, "bias", record, site, fold)
        return parameters

    def _share(
        self, constant: Constant, what: str, record: str, site: ConvSite, fold: ConvFold
    ) -> Value:
        geometry = f"{site.group} {site.axes}"
        key = (f"{id(constant.value)} {what}", record, geometry)
        if key not in self._folded:
            array = self._document.read(constant)
            folded = fold_weight(array, fold) if what == "weight" else fold_bias(array, fold)
            self._folded[key] = self._document.add_constant(
                folded,
                f"{constant.value.name}/widthfold",
                constant.owner,
                external=constant.is_external,
            )
        return self._folded[key]
