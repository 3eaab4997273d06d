"""The integers on which QLinearConv and ConvInteger are probed.

Data and weights are random over the range of their type, zero points and the scales of the weight
are those of the model. A QLinearConv rounds what it sums to 8 bits: the scale of its output is
chosen so that sums spread over its range, and a wrong product moves an output by some steps.

Weights have 7 bits, which no kernel saturates at (`runtime.saturation`): the probe judges the fold
and not the processor. What saturates in the whole model is told by `evidence.saturated`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from widthfold_onnx.evidence.claims import read
from widthfold_onnx.evidence.probe import LARGEST, Draw
from widthfold_onnx.evidence.wanted import Wanted
from widthfold_onnx.model.graph import Document, Node
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rules.parameter import INPUTS, input_of
from widthfold_onnx.rules.quantized import Quantization

Array = npt.NDArray[Any]

DATA_SCALE, OUT_SCALE = "probe/data_scale", "probe/out_scale"
SIGMAS = 3
"""So many standard deviations of a sum fill half of the range of the output."""


def draw_bytes(quantization: Quantization) -> Draw:
    """Draws weights, biases and data; scales and zero points stay.

    Args:
        quantization: of the data.
    """

    def draw(
        rng: np.random.Generator, originals: Sequence[Array], shape: tuple[int, ...], terms: int
    ) -> list[Array]:
        weight, *others = originals
        middle = 0 if weight.dtype.kind == "i" else 128
        drawn = [middle + rng.integers(-LARGEST, LARGEST, weight.shape, endpoint=True)]
        drawn += [
            rng.integers(-(LARGEST**2), LARGEST**2, array.shape) if _is_bias(array) else array
            for array in others
        ]
        limits = np.iinfo(quantization.dtype.lower())
        data = rng.integers(limits.min, limits.max, shape, limits.dtype, endpoint=True)
        parameters = zip(drawn, originals, strict=True)
        return [*(array.astype(original.dtype) for array, original in parameters), data]

    return draw


def _is_bias(array: Array) -> bool:
    return array.dtype == np.int32


def own_scales(node: onnx.NodeProto) -> onnx.NodeProto:
    """A node that reads the scales of its data and its output from names of their own."""
    inputs, own = INPUTS[node.op_type], onnx.NodeProto()
    own.CopyFrom(node)
    for index, name in ((inputs.data_scale, DATA_SCALE), (inputs.out_scale, OUT_SCALE)):
        if index is not None:
            own.input[index] = name
    return own


def zero_of(node: Node) -> str:
    """Name of the zero point of the data, "" where it is 0."""
    value = input_of(node, INPUTS[node.op_type].data_zero)
    return "" if value is None else value.name or ""


def given_to(document: Document, wanted: Wanted) -> dict[str, Array]:
    """Numbers by name that the probe gives to both nodes, in the place of the model's.

    That is the scales of `own_scales`, and what is only computed when the model runs.
    """
    site, known = wanted.site, wanted.site.quantization
    if known is None or known.dequantized:
        return {}
    inputs, node = INPUTS[site.op], site.node
    rng, limits = np.random.default_rng(0), np.iinfo(known.dtype.lower())
    given: dict[str, Array] = {}
    for index in (inputs.data_zero, inputs.out_zero):
        value = input_of(node, index)
        if value is not None and isinstance(document.constant(value), Refusal):
            number = rng.integers(limits.min, limits.max, (), limits.dtype, endpoint=True)
            given[value.name or ""] = np.asarray(number)
    scale = input_of(node, inputs.scale)
    if scale is not None:
        # Standard deviation of a product: that of weights even in -61..61 times that of 8 bits.
        product = (2 * LARGEST + 1) / math.sqrt(12) * 256 / math.sqrt(12)
        spread = float(np.max(read(document, scale))) * product * math.sqrt(wanted.terms) * SIGMAS
        given[DATA_SCALE] = np.array(1, np.float32)
        given[OUT_SCALE] = np.array(spread / 128, np.float32)
    return given


def constants_of(document: Document, node: Node, given: Mapping[str, Array]) -> dict[str, Array]:
    """What a node reads besides the data, by name, with what is given."""
    inputs = INPUTS[node.op_type]
    known = dict(given)
    for index, value in enumerate(node.inputs):
        scale = index in (inputs.data_scale, inputs.out_scale)
        if value is not None and index and not scale and value.name not in given:
            known[value.name or ""] = read(document, value)
    return known
