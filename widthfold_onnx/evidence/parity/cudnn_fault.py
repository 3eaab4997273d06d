"""Asks whether a GPU computes the original itself wrongly, before a fold is blamed for it.

cuDNN before 9.24 is reported to compute some sequences of depthwise Convs wrongly
(NVIDIA/cudnn-frontend#442).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from widthfold_onnx.evidence.parity.comparison import Judge, Outputs
from widthfold_onnx.evidence.parity.reference import Reference
from widthfold_onnx.evidence.parity.runs import attempt
from widthfold_onnx.model.proto.walk import model_nodes
from widthfold_onnx.model.read.loader import load
from widthfold_onnx.options import Provider
from widthfold_onnx.runtime.sessions.descriptions import described
from widthfold_onnx.runtime.sessions.session import Level
from widthfold_onnx.runtime.sessions.shared_libraries import cudnn_version

SOUND = (9, 24)
"""The first cuDNN without that fault."""


def original_is_off(
    reference: Reference, rewritten: Path, computed: Sequence[Sequence[Outputs]]
) -> list[str]:
    """Say whether the original differs between GPU and CPU, in one line.

    Args:
        reference: the original, run on the provider.
        rewritten: model file.
        computed: outputs of the original on the provider, by level and set.

    Returns:
        Nothing where that fault cannot be the reason.
    """
    options, sets = reference.options, reference.sets
    version = cudnn_version() if described(options.provider).device == "nvidia" else SOUND
    if version >= SOUND or not any(map(_holds_groups, (reference.model, rewritten))):
        return []
    found = f"cuDNN {'.'.join(map(str, version)) or 'of unknown version'}"
    there = dataclasses.replace(options, provider=Provider.CPU, provider_options={})
    expected = attempt(reference.model, there, Level.DISABLED, sets, reference.report)
    if isinstance(expected, str):
        return [f"{found} may be at fault (before 9.24); the CPU cannot tell: {expected}"]
    judge = Judge(options.tolerance, reference.unsteady, [{} for _ in sets])
    for outputs in computed:
        for where in judge.differences(judge.cells("disabled", expected, outputs), sets):
            return [f"the original itself is off on the GPU ({found}), beside the CPU: {where}"]
    return [f"the original is right on the GPU ({found}): it agrees with the CPU"]


def _holds_groups(model: Path) -> bool:
    """Check whether a model holds a Conv of several groups, of any kind."""
    return any(
        "Conv" in node.op_type and attribute.name == "group" and attribute.i > 1
        for node in model_nodes(load(model).proto)
        for attribute in node.attribute
    )
