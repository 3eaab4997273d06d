"""Offer the fold as a pass of onnx_ir, for `onnx_ir.passes.Sequential` and its kin."""

from __future__ import annotations

from widthfold_onnx.interop import FACTOR, fold_ir
from widthfold_onnx.model.graph.library import ir
from widthfold_onnx.options import FoldOptions


class WidthFold(ir.passes.FunctionalPass):
    """Folds every layer that can be folded, also in the bodies of If, Loop and Scan.

    Local functions that hold such a layer are inlined. A model that carries folds stays as it is,
    so a second run modifies nothing. Tensors that are not folded are shared with the input.

    Args:
        factor: positions per channel that become channels.
        options: other options of the fold; its factor counts instead of `factor`.
        prove: prove the result equal; it raises where that does not hold (`interop.fold_ir`).
    """

    def __init__(
        self, factor: int = FACTOR, *, options: FoldOptions | None = None, prove: bool = True
    ) -> None:
        self.options = options or FoldOptions(factor=factor)
        self.prove = prove

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Return a new model, and whether anything was folded."""
        folded, _ = fold_ir(model, self.options, prove=self.prove)
        if folded is model:
            return ir.passes.PassResult(model.clone(), modified=False)
        return ir.passes.PassResult(folded, modified=True)
