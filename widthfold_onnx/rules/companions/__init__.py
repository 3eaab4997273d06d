"""Find ops beside low-channel layers that equal ops compute faster: the companions of a fold.

Every rule has a file, which states what it matches and why the exchange is exact. `COMPANIONS`
lists the rules, at most five. `evidence.proof` uses none of them: it has its own definitions of the
ops on both sides.
"""

from __future__ import annotations

from collections.abc import Mapping

from widthfold_onnx.options import Companion
from widthfold_onnx.rules.companions.companion import CompanionRule
from widthfold_onnx.rules.companions.crop import crop
from widthfold_onnx.rules.companions.prelu import prelu, prelu_runtime_problem
from widthfold_onnx.rules.companions.scalar import scalar
from widthfold_onnx.rules.companions.split import split

COMPANIONS: Mapping[Companion, CompanionRule] = {
    Companion.CROP: CompanionRule(("Conv", "ConvTranspose"), crop, lifts=True),
    Companion.PRELU: CompanionRule(
        ("PRelu",), prelu, inlines=True, branches=True, runtime_problem=prelu_runtime_problem
    ),
    Companion.SCALAR: CompanionRule(("Add", "Div", "Mul", "Sub"), scalar),
    Companion.SPLIT: CompanionRule(("Split",), split, lifts=True),
}
