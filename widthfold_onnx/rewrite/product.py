"""The nodes of a folded product of matrices: moves, MatMul or Gemm, moves."""

from __future__ import annotations

from widthfold_onnx.model.graph import Node
from widthfold_onnx.rewrite.emit import Chain
from widthfold_onnx.rewrite.parameters import Parameters
from widthfold_onnx.rewrite.record import FOLD_KEY, encoded, product_record
from widthfold_onnx.rules.matmul import MatMulForm
from widthfold_onnx.rules.matmul_site import MatMulSite


def append_product(
    chain: Chain, site: MatMulSite, form: MatMulForm, parameters: Parameters
) -> Node:
    """Append the new nodes of a site.

    Args:
        chain: ends with the data of the site as it is.
        site: the product.
        form: what becomes of it.
        parameters: the folded weights of the model.

    Returns:
        The folded MatMul or Gemm.
    """
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
    new = chain.add(
        site.op,
        "product",
        others,
        {**kept, **turned},
        {FOLD_KEY: record},
        first=[weight] if site.left else [],
    )
    chain.steps(form.unfolding, "unfold")
    return new
