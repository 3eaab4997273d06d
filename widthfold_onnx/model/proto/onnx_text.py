"""Makes small models from the text syntax of ONNX, for runs that ask something of the runtime."""

from __future__ import annotations

import onnx
from onnx import parser


def model_of(graph: str) -> onnx.ModelProto:
    """Return a model of one graph.

    >>> model_of("g (float[2] x) => (float[2] y) { y = Neg(x) }").graph.node[0].op_type
    'Neg'
    """
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {graph}')
