"""Find ops around low-channel layers that an equal op computes faster: companions of the fold.

A rule is a file, which states its match and why the exchange is exact; `COMPANIONS` lists all, five
at most.
`evidence.proof` reads no rule: it defines the ops on both sides.
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
