"""ConvTranspose with SAME padding, whose output onnx's inference takes for larger than it is.

SAME keeps stride times the input's extent (ONNX operator text, ConvTranspose-11); output_padding
adds only what the kernel alone does not reach of that. Inference adds all of it, the runtime does
not (measured on onnx 1.23.2 and onnxruntime 1.31.1, tests/model/test_shapes.py).
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx

Dims = tuple[int | None, ...]


def settle_same(node: onnx.NodeProto, shapes: Mapping[str, Dims]) -> bool:
    """Leave of a node's output_padding what SAME padding leaves of it.

    Args:
        node: any node of a skeleton, changed in place.
        shapes: by value name, for the extents of the kernel.

    Returns:
        Whether it was changed.
    """
    if node.op_type != "ConvTranspose" or node.domain not in ("", "ai.onnx"):
        return False
    given = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    more = given.get("output_padding", [])
    kernel = given.get("kernel_shape") or shapes.get(node.input[1], ())[2:]
    if not given.get("auto_pad", b"").startswith(b"SAME") or "output_shape" in given:
        return False
    if len(kernel) != len(more) or None in kernel:
        return False
    ones = [1] * len(more)
    geometry = zip(
        more, kernel, given.get("strides", ones), given.get("dilations", ones), strict=True
    )
    left = [min(m, max(0, s - d * (k - 1) - 1)) for m, k, s, d in geometry]
    for attribute in node.attribute:
        if attribute.name == "output_padding":
            attribute.ints[:] = left
    return left != list(more)
