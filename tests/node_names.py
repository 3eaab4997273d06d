"""The text syntax of ONNX as newer releases read it: names, `[name] y = Op(x)`, and `Op(, x)`."""

from __future__ import annotations

import re
from collections.abc import Callable

import onnx
import pytest
from onnx import parser

from widthfold_onnx.model.proto.walk import model_nodes

MARK, NONE = "_named_", "_none_"
NAMED = re.compile(r"\[(?P<name>[^\[\]\d=,][^\[\]=,]*)\](?P<rest>\s*[^=\[\]{}()<>]*=\s*[\w.]+)")


def parses_names() -> bool:
    """Say whether this onnx reads names of nodes."""
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float x) => (float y) {[n] y = Neg(x)}'
    try:
        return bool(parser.parse_model(text).graph.node[0].name)
    except parser.ParseError:
        return False


READS_NAMES = parses_names()
needs_names = pytest.mark.skipif(not READS_NAMES, reason="onnx's text syntax has no names of nodes")


def naming(parse: Callable[[str], onnx.ModelProto]) -> Callable[[str], onnx.ModelProto]:
    """Make a parser of models read both: in between operators carry names, and no input one."""

    def parse_model(text: str) -> onnx.ModelProto:
        marked = NAMED.sub(lambda m: f"{m['rest']}{MARK}{m['name'].encode().hex()}", text)
        model = parse(re.sub(r"\(\s*,", f"({NONE},", marked))
        for node in model_nodes(model):
            node.op_type, _, name = node.op_type.partition(MARK)
            node.name = bytes.fromhex(name).decode()
            node.input[:] = ["" if read == NONE else read for read in node.input]
        return model

    return parse_model
