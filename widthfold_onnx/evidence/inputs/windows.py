"""Checks that every layer has something to compute at some sizes."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from widthfold_onnx.model.shapes.table import ShapeTable
from widthfold_onnx.options import Shapes


def all_windows_fit(model: onnx.ModelProto, shapes: Shapes) -> bool:
    """Check that the windows of all pools and Convs of the main graph fit into what they read.

    The runtime computes a MaxPool of 2 positions on one position, outside of its data (1.32.0).
    """
    table = ShapeTable(model, shapes)
    for node in model.graph.node:
        given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        extents = table.extents("", node.input[0]) if "kernel_shape" in given else None
        if extents is None or given.get("auto_pad", b"").startswith(b"SAME"):
            continue
        kernel = np.array(given["kernel_shape"])
        pads = np.array(given.get("pads", [0] * 2 * kernel.size)).reshape(2, -1).sum(0)
        reach = (kernel - 1) * given.get("dilations", 1) + 1
        if node.op_type != "ConvTranspose" and (extents[2:] + pads < reach).any():
            return False
    return True
