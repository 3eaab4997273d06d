"""Checks that every fold has to pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from tests.folding import fold_model
from tests.rewrite.proved import assert_proved
from tests.running import LEVELS, Array, run
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.results import SiteReport

ANY_GROWTH = {"max_flops_growth": 1e9, "max_bytes_growth": 1e9}


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A random model, an input of it, how it is folded.

    Attributes:
        expected: computes what the model returns, by an oracle.
        levels: where the runtime has kernels for the model.
    """

    model: onnx.ModelProto
    x: Array
    expected: Callable[[], Sequence[Array]]
    options: FoldOptions
    levels: Sequence[str] = LEVELS


def is_inferred(model: onnx.ModelProto) -> bool:
    """True if onnx infers the shapes of a model.

    onnx 1.23.2 loses the axes of a ConvTranspose whose output_shape is below the input's extents.
    """
    try:
        onnx.checker.check_model(model, full_check=True)
    except onnx.shape_inference.InferenceError:  # noqa: TID251 - an error of onnx's checker
        return False
    return True


def checked_fold(drawn: Drawn) -> tuple[onnx.ModelProto, list[SiteReport]]:
    """Fold a model: the fold is legal, exact and proved, and a second fold changes nothing.

    Where nothing is folded the result is the model, byte for byte.
    """
    model, options = drawn.model, drawn.options
    folded, sites = fold_model(model, options)
    same = folded.SerializeToString()
    count = sum(site.status == "folded" for site in sites)
    if not count:
        assert same == model.SerializeToString()
        return folded, sites
    onnx.checker.check_model(folded, full_check=is_inferred(model))
    expected = drawn.expected()
    for level in drawn.levels:
        for result, reference in zip(run(folded, drawn.x, level), expected, strict=True):
            np.testing.assert_array_equal(result, reference, strict=True)
    again, later = fold_model(folded, options)
    assert again.SerializeToString() == same
    assert [site.code for site in later].count("already-folded") >= count
    assert fold_model(model, options)[0].SerializeToString() == same
    assert_proved(model, folded, count, options.input_shapes, {"x": drawn.x.shape})
    return folded, sites
