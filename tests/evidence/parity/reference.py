"""The original of a comparison whose outputs are planted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from widthfold_onnx.evidence.parity.reference import Reference
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.options.progress import silent
from widthfold_onnx.runtime.inputs.input_sets import InputSets
from widthfold_onnx.runtime.inputs.recorded import InputSet


def reference(model: Path, options: VerifyOptions, sets: Sequence[InputSet]) -> Reference:
    return Reference(model, options, silent, InputSets(list(sets)), [], [], set())
