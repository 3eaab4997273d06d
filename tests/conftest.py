"""What tests of several folders share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from widthfold_onnx.evidence import files
from widthfold_onnx.evidence.parity import truth


@pytest.fixture
def in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verify in this process: the same is said, without the start of two others for every run.

    What children are there for, crashes and limits, has tests of its own (`runtime.worker`).
    """

    def call(
        function: Callable[..., Any],
        *args: object,
        on_progress: Callable[[Any], None] | None = None,
        timeout: float | None = None,
    ) -> Any:
        return function(*args, **({"report": on_progress} if on_progress else {}))

    for module in (files, truth):
        monkeypatch.setattr(module, "isolated", call)
