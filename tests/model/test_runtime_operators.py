"""Operators of the default domain that the runtime has beside those of onnx."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from widthfold_onnx.model import runtime_operators
from widthfold_onnx.model.runtime_operators import may_be_run


@pytest.fixture
def without_runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "onnxruntime.capi", None)
        runtime_operators._versions.cache_clear()
        yield
    runtime_operators._versions.cache_clear()


@pytest.mark.parametrize(
    ("op_type", "opset", "expected"),
    [
        ("ImageScaler", 1, True),
        ("ImageScaler", 9, True),
        ("ImageScaler", 10, False),
        ("SimplifiedLayerNormalization", 17, True),
        ("Mish", 17, False),
        ("Mish", 18, True),
        ("NoSuchOperator", 17, False),
    ],
)
def test_the_runtime_tells_its_operators(op_type: str, opset: int, expected: bool) -> None:
    assert may_be_run(op_type, opset) is expected


@pytest.mark.usefixtures("without_runtime")
def test_without_a_runtime_any_operator_may_be_one() -> None:
    assert may_be_run("NoSuchOperator", 17)
