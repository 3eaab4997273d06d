"""What the runtime's PRelu makes of an Inf decides whether it may be exchanged."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

from tests.running import run
from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.runtime import kernels


@pytest.mark.parametrize("slopes", ["float[3,1] s = {0.5, 0.25, 2.0}", "float s = {0.5}"])
def test_what_it_says_holds_for_every_shape_of_slopes(slopes: str) -> None:
    text = f"g (float[3,7] x) => (float[3,7] y) <{slopes}> {{ y = PRelu (x, s) }}"
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    for number in (np.inf, -np.inf):
        (y,) = run(model, np.full((3, 7), number, np.float32))
        assert np.isinf(y).all() == kernels.prelu_keeps_inf()


def test_without_a_runtime_there_is_nothing_to_differ_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise UnverifiedError("none is installed")

    monkeypatch.setattr(kernels, "open_session", fail)
    assert kernels.prelu_keeps_inf.__wrapped__()
