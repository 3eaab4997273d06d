"""Build the nodes of a folded product of matrices: moves, the same operator, moves.

Moves of dequantized data are followed by a quantizer pair, which keeps the data integer: see
`rules.dequantized`.
"""

from __future__ import annotations

from widthfold_onnx.model.graph import Node
from widthfold_onnx.rewrite.emit import Chain
from widthfold_onnx.rewrite.parameters import Parameters
from widthfold_onnx.rewrite.record import FOLD_KEY, PACKED, encoded, product_record
from widthfold_onnx.rules.base import Ends
from widthfold_onnx.rules.matmul import MatMulForm
from widthfold_onnx.rules.matmul_site import MatMulSite
from widthfold_onnx.rules.parameter import dequantizer


def append_product(
    chain: Chain, site: MatMulSite, form: MatMulForm, ends: Ends, parameters: Parameters
) -> Node:
    """Append the new nodes of a site, with a fold or unfold at ends without a state.

    Args:
        chain: ends with the data of the site, in the state that it reads.
        site: the product.
        form: the form that replaces it.
        ends: the states in which it reads and returns.
        parameters: the folded weights of the model.

    Returns:
        The folded product.
    """
    if ends.reads is None:
        chain.steps(form.folding, "fold")
        chain.requantize(site.dequantizer)
    record = encoded(product_record(site, form))
    inputs = list(site.node.inputs)
    for index in site.parameters:
        if site.is_dequantized and dequantizer(inputs[index]) is not None:
            given, axis = parameters.of_dequantizer(site, form.fold, record, index)
            inputs[index] = chain.beside("DequantizeLinear", given, axis)
        else:
            inputs[index] = parameters.of_product(site, form.fold, record, index)
    kept: dict[str, float] = {
        name: site.node.attributes[name].as_float()
        for name in ("alpha", "beta")
        if name in site.node.attributes
    }
    turned = {"transA" if site.left else "transB": 1} if site.turned else {}
    metadata = {FOLD_KEY: record}
    if ends.returns is not None:
        metadata |= PACKED
    new = chain.add(
        site.op,
        "product",
        {str(index): value for index, value in enumerate(inputs[site.data_index + 1 :])},
        {**kept, **turned},
        metadata,
        first=inputs[: site.data_index],
    )
    if ends.returns is None:
        chain.steps(form.unfolding, "unfold")
    return new
