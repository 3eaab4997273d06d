"""List the companions by name."""

from __future__ import annotations

from collections.abc import Mapping

from widthfold_onnx.rules.companions.companion import Companion
from widthfold_onnx.rules.companions.prelu import prelu

COMPANIONS: Mapping[str, Companion] = {
    "prelu": Companion(("", "PRelu"), prelu),
}
