"""A draw for tests of parts of a proof, which else get one from the two models."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from widthfold_onnx.evidence.proof.field import Draw, drawing


@pytest.fixture(autouse=True)
def draw() -> Iterator[Draw]:
    draw = Draw.of("tests")
    with drawing(draw):
        yield draw
