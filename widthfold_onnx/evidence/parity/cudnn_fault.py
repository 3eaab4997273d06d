"""Asks whether a GPU computes the original itself wrongly, before a fold is blamed for it.

cuDNN before 9.24 is reported to compute some sequences of depthwise Convs wrongly
(NVIDIA/cudnn-frontend#442).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from widthfold_onnx.evidence.parity.comparison import Judge, Outputs, difference
from widthfold_onnx.evidence.parity.runs import Report, attempt
from widthfold_onnx.model.proto.walk import all_nodes
from widthfold_onnx.model.read.loader import load
from widthfold_onnx.options import Provider, VerifyOptions
from widthfold_onnx.runtime.inputs.recorded import InputSet
from widthfold_onnx.runtime.sessions.libraries import cudnn_version
from widthfold_onnx.runtime.sessions.session import Level

SOUND = (9, 24)
"""The first cuDNN without that fault."""


def original_is_off(
    models: Sequence[Path],
    options: VerifyOptions,
    sets: Sequence[InputSet],
    computed: Sequence[Sequence[Outputs]],
    unsteady: set[str],
    report: Report,
) -> list[str]:
    """Say whether the original differs between GPU and CPU, in one line.

    Args:
        models: original and rewritten.
        options: the provider that ran them, and the tolerance.
        sets: the input sets.
        computed: outputs of the original on the provider, by level and set.
        unsteady: outputs that cannot be judged.
        report: gets a line of text before each run.

    Returns:
        Nothing where that fault cannot be the reason.
    """
    version = cudnn_version() if options.provider is not Provider.CPU else SOUND
    if version >= SOUND or not any(map(_holds_groups, models)):
        return []
    found = f"cuDNN {'.'.join(map(str, version)) or 'of unknown version'}"
    there = dataclasses.replace(options, provider=Provider.CPU, provider_options={})
    expected = attempt(models[0], there, Level.DISABLED, sets, report)
    if isinstance(expected, str):
        return [f"{found} may be at fault (before 9.24); the CPU cannot tell: {expected}"]
    judge = Judge(options.tolerance, unsteady, [{} for _ in sets])
    for outputs in computed:
        for number, cell in judge.failed(judge.cells("disabled", expected, outputs)):
            where = difference(cell, sets[number].label)
            return [f"the original itself is off on the GPU ({found}), beside the CPU: {where}"]
    return [f"the original is right on the GPU ({found}): it agrees with the CPU"]


def _holds_groups(model: Path) -> bool:
    """Check whether a model holds a Conv of several groups, of any kind."""
    proto = load(model).proto
    bodies = (proto.graph.node, *(function.node for function in proto.functions))
    return any(
        "Conv" in node.op_type and attribute.name == "group" and attribute.i > 1
        for body in bodies
        for node in all_nodes(body)
        for attribute in node.attribute
    )
