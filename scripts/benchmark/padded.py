"""Channels padded to multiples of a tile, as a rival."""

from __future__ import annotations

from pathlib import Path

from widthfold_onnx.algebra.channels import Grouping
from widthfold_onnx.arrays import round_up
from widthfold_onnx.decide.decisions import decisions_of, forms_of
from widthfold_onnx.decide.inspection import TILE
from widthfold_onnx.model.loader import load
from widthfold_onnx.options import FoldOptions, Shapes
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rewrite.draft import Draft
from widthfold_onnx.rewrite.reading import Reading
from widthfold_onnx.rewrite.rewriting import rewrite
from widthfold_onnx.rules.enumeration import conv_forms
from widthfold_onnx.rules.form import Answer
from widthfold_onnx.rules.layers import ConvLayer, Layer


def pad_channels(model: Path, out: Path, shapes: Shapes) -> int:
    """Write a model with all channels padded to multiples of a tile; return of how many Conv.

    That is the advice of NVIDIA's convolution guide, the rival of every fold.
    """

    def choose(layer: Layer) -> Answer:
        if not isinstance(layer, ConvLayer) or layer.op != "Conv" or layer.group > 1:
            return Refusal(Code.NO_GAIN, "only a Conv of one group is padded")
        grouping = Grouping(*(round_up(channels, TILE) for channels in layer.channels))
        unlimited = FoldOptions(ragged=True, max_flops_growth=1e9, max_bytes_growth=1e9)
        padded = conv_forms(layer, unlimited, (1,) * (1 + len(layer.axes)), grouping=grouping)
        return next((form for _, form in padded), Refusal(Code.NO_GAIN, "nothing is missing"))

    loaded = load(model)
    options = FoldOptions(input_shapes=(shapes,), max_flops_growth=1e9, max_bytes_growth=1e9)
    reading = Reading.of(loaded, Draft.unchanged(options))
    forms = forms_of(decisions_of(reading, options.selection, choose))
    with rewrite(reading, forms).written(out) as file:
        file.publish()
    return len(forms)
