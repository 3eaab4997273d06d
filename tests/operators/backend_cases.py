"""ONNX's own backend cases of some operators, with their inputs and outputs."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Iterator
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case import node
from onnx.backend.test.loader import load_model_tests

# Some cases are of an operator set that onnx has released and the runtime has not yet.
os.environ["ALLOW_RELEASED_ONNX_OPSET_ONLY"] = "0"

FACTORS = range(2, 17)
# In half precision the runtime itself rounds less often than the reference: one unit, 2**-10.
TOLERANCE = {"float32": 1e-5, "float16": 1e-3, "uint8": 0, "int32": 0}
Case = tuple[str, onnx.ModelProto, list[np.ndarray], list[np.ndarray]]


def backend_cases(op_types: Collection[str]) -> Iterator[Case]:
    """Only the files of these operators are imported: the cases of all take seconds to make."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # making the cases overflows on purpose
        if find_spec(f"{node.__name__}.causal_conv_with_state"):  # not in older releases of onnx
            import_module(f"{node.__name__}.causal_conv_with_state")
        for name in sorted(map(str.lower, op_types)):
            import_module(f"{node.__name__}.{name}")
    stored = (load_model_tests(kind=kind) for kind in ("pytorch-converted", "pytorch-operator"))
    for case in chain(node._NodeTestCases, *stored):
        model = case.model or onnx.load(Path(case.model_dir) / "model.onnx")
        if not any(n.op_type in op_types for n in model.graph.node):
            continue
        sets = case.data_sets or list(stored_sets(Path(case.model_dir)))
        yield case.name, model, *sets[0]


def stored_sets(folder: Path) -> Iterator[tuple[list[np.ndarray], list[np.ndarray]]]:
    for data in sorted(folder.glob("test_data_set_*")):
        yield tuple(
            [
                numpy_helper.to_array(onnx.load_tensor(data / f"{what}_{i}.pb"))
                for i in range(len(list(data.glob(f"{what}_*.pb"))))
            ]
            for what in ("input", "output")
        )
