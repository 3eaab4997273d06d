"""The one way in which models are made here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, helper, numpy_helper

Port = tuple[str, npt.DTypeLike, Sequence[int] | None]
"""Name, type and shape of an input or an output; None leaves the shape to the runtime."""


def serialized(
    nodes: Sequence[NodeProto],
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    constants: Mapping[str, npt.NDArray[Any]],
) -> bytes:
    """A model of opset 17, which every runtime of today reads."""
    graph = helper.make_graph(
        nodes,
        "part",
        [_value(port) for port in inputs],
        [_value(port) for port in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opset = helper.make_opsetid("", 17)
    return bytes(helper.make_model(graph, opset_imports=[opset], ir_version=8).SerializeToString())


def _value(port: Port) -> Any:
    name, dtype, shape = port
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return helper.make_tensor_value_info(name, element, shape)
