"""The nodes of a folded product of matrices: moves, MatMul or Gemm, moves."""

from __future__ import annotations

from widthfold_onnx.model.graph import Node
from widthfold_onnx.rewrite.emit import Chain
from widthfold_onnx.rewrite.parameters import Parameters
from widthfold_onnx.rewrite.record import FOLD_KEY, encoded, product_record, state_record
from widthfold_onnx.rules.base import Ends
from widthfold_onnx.rules.matmul import MatMulForm
from widthfold_onnx.rules.matmul_site import MatMulSite


def append_product(
    chain: Chain, site: MatMulSite, form: MatMulForm, ends: Ends, parameters: Parameters
) -> Node:
    """Append the new nodes of a site; with its own fold or unfold where no state fits.

    Args:
        chain: ends with the data of the site, in the state that it reads.
        site: the product.
        form: what becomes of it.
        ends: the states in which it reads and returns.
        parameters: the folded weights of the model.

    Returns:
        The folded MatMul or Gemm.
    """
    if ends.reads is None:
        chain.steps(form.folding, "fold")
    record = encoded(product_record(site, form))
    weight, addend = parameters.of_product(site, form.fold, record)
    others = {} if site.left else {"weight": weight}
    if addend is not None:
        others["addend"] = addend
    kept: dict[str, float] = {
        name: site.node.attributes[name].as_float()
        for name in ("alpha", "beta")
        if name in site.node.attributes
    }
    turned = {"transA" if site.left else "transB": 1} if site.turned else {}
    metadata = {FOLD_KEY: record}
    if ends.returns is not None:
        metadata |= state_record(ends.returns, [ends.out_shape])
    new = chain.add(
        site.op,
        "product",
        others,
        {**kept, **turned},
        metadata,
        first=[weight] if site.left else [],
    )
    if ends.returns is None:
        chain.steps(form.unfolding, "unfold")
    return new
