"""Faults in folded products of integers, where the judge and the proof are asked."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

import numpy as np
import onnx
from onnx import numpy_helper

from tests.evidence.mutants.judge import Judgement
from tests.evidence.mutants.mutant import Mutant, check, content
from tests.folding import fold_model
from tests.rewrite.quantized.dequantized_products import DequantizedProduct
from tests.rewrite.quantized.products import QuantizedProduct
from widthfold_onnx.options import FoldOptions

FACTOR = 3

Product = QuantizedProduct | DequantizedProduct
Arrays = dict[str, np.ndarray]
Fault = Callable[[onnx.ModelProto, Arrays], None]
"""Changes nodes and constants of a folded model in place, where it has a place for that."""


def right_fold(product: Product) -> onnx.ModelProto:
    model, (report,) = fold_model(product.model(), FoldOptions(factor=FACTOR))
    assert report.status == "folded", report.reason
    return model


def mutant(product: Product, fault: Fault) -> onnx.ModelProto:
    model = right_fold(product)
    arrays = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    fault(model, arrays)
    del model.graph.initializer[:]
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in arrays.items())
    return model


def check_faults(product: Product, faults: Mapping[str, Fault], strict: Container[str] = ()) -> int:
    """Show that the proof finds all faults that change the function; count these.

    Args:
        product: the original.
        faults: by name.
        strict: names of faults that rounding hides from the judge, and that are found all the same.
    """
    original, count = product.model(), 0
    right = content(right_fold(product))
    patterns = {f"product-{name}": "rounding hides it" for name in strict}
    for name, fault in faults.items():
        planted = Mutant("product", name, original, mutant(product, fault))
        if content(planted.model) != right:
            count += check(planted, patterns) is not Judgement.SAME
    return count
