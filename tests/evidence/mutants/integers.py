"""Faults in folded products of integers; whether one changes the function, the runtime decides.

It is asked on random data, and without its optimizations.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort  # noqa: TID251 - the runtime is the judge here
from onnx import numpy_helper

from tests.evidence.mutants.proof import difference
from tests.rewrite.dequantized_products import DequantizedProduct
from tests.rewrite.quantized_products import QuantizedProduct
from widthfold_onnx import FoldOptions, fold_model

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


def outputs(model: onnx.ModelProto, product: Product) -> list[bytes]:
    """What a model returns on several inputs; nothing where it does not run."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = ort.InferenceSession(model.SerializeToString(), options)
        runs = [session.run(None, {"x": product.data(seed)})[0] for seed in range(8)]
    except Exception:  # the bindings raise classes of their own for every kind of fault
        return []
    return [str(run.shape).encode() + run.tobytes() for run in runs]


def check_right(product: Product, folder: Path) -> None:
    """A right fold is one for the runtime and for the proof."""
    original, folded = product.model(), right_fold(product)
    assert outputs(folded, product) == outputs(original, product) != []
    assert difference(original, folded, folder) == ""


def found(
    product: Product, faults: Mapping[str, Fault], folder: Path, strict: Container[str] = ()
) -> int:
    """How many faults change the function; the proof finds them all, and the strict ones."""
    original, count = product.model(), 0
    expected = outputs(original, product)
    for name, fault in faults.items():
        model = mutant(product, fault)
        changed = outputs(model, product) != expected
        if changed or name in strict:
            assert difference(original, model, folder), name
        count += changed
    return count
