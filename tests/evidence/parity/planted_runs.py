"""The original of a comparison whose outputs are planted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx

from widthfold_onnx.evidence.parity.original_runs import OriginalRuns
from widthfold_onnx.model.loader import LoadedModel
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.runtime.inputs.feeds import InputSet
from widthfold_onnx.runtime.inputs.input_sets import InputSets

UNREAD = LoadedModel(onnx.ModelProto(), Path(), Path("a.onnx"), "", name="a.onnx")


def planted_runs(
    options: VerifyOptions, sets: Sequence[InputSet], model: LoadedModel = UNREAD
) -> OriginalRuns:
    return OriginalRuns(model, options, InputSets(list(sets)), [], [], set())
