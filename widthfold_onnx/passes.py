"""Offer the fold as a pass of onnx_ir, for `onnx_ir.passes.Sequential` and its kin."""

from __future__ import annotations

from typing import Unpack

from widthfold_onnx.api import fold
from widthfold_onnx.model.library import ir
from widthfold_onnx.options.keywords import FoldKeywords


class WidthFold(ir.passes.FunctionalPass):
    """Folds every layer that can be folded, also in the bodies of If, Loop and Scan.

    Local functions that hold such a layer are inlined. A model that contains folds stays as it is,
    so a second run modifies nothing. Tensors that are not folded are shared with the input.

    Args:
        no_verify: do not prove the result equal; else `call` raises where that does not hold.
        keywords: keywords of `widthfold_onnx.fold`; `factor` is 8 by default.
    """

    def __init__(self, *, no_verify: bool = False, **keywords: Unpack[FoldKeywords]) -> None:
        self.no_verify = no_verify
        self.keywords = keywords

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Return a new model, and whether anything was folded."""
        result = fold(model, no_verify=self.no_verify, **self.keywords)
        if result is model:
            return ir.passes.PassResult(model.clone(), modified=False)
        return ir.passes.PassResult(result, modified=True)
