"""Cases that could be silently wrong: assumed extents, SAME padding, Loop bodies, empty outputs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.folding import fold_model
from tests.rules.one_conv import conv_model, site
from tests.running import LEVELS, run
from widthfold_onnx.options import FoldOptions


def test_same_pads_of_an_assumed_kept_extent_are_guarded() -> None:
    model = conv_model([2, 1, 16, "w"], (1, 1, 3, 3), auto_pad="SAME_UPPER", strides=[1, 2])
    assumed = {"x": (2, 1, 16, 15)}
    assert site(model, 4, input_shapes=assumed).guard == "extents"
    assert site(model, 4).code == "unknown-extent"


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("stride", [2, 3, 4])
@pytest.mark.parametrize("length", [5, 7, 8, 12])
def test_same_pads_of_a_sparse_stride_are_those_of_the_runtime(
    auto_pad: str, stride: int, length: int
) -> None:
    model = conv_model([4, 1, length], (1, 1, 1), auto_pad=auto_pad, strides=[stride])
    folded, (report,) = fold_model(model, FoldOptions(factor=2, axis=0))
    added = (-(-length // stride) - 1) * stride + 1 - length
    begin = int((added + (auto_pad == "SAME_LOWER")) / 2)  # rounded towards 0, as the runtime does
    assert report.code == ("negative-same-pads" if begin < 0 else "folded")
    x = np.arange(4 * length, dtype=np.float32).reshape(4, 1, length)
    first, second = (run(m, x, LEVELS[1])[0] for m in (model, folded))
    np.testing.assert_array_equal(first, second)


def test_an_empty_output_is_refused() -> None:
    for model in (
        conv_model([2, 1, 2], (1, 1, 3)),
        conv_model([2, 1, 2], (1, 1, 4), dilations=[2]),
        conv_model([2, 1, 16, 2], (1, 1, 1, 4), dilations=[1, 2]),
    ):
        for ragged in (False, True):
            assert site(model, 2, ragged=ragged).code == "empty-tensor"


@pytest.mark.parametrize("factor", [2, 4])
def test_what_a_loop_carries_has_no_known_extents(factor: int) -> None:
    """The body is declared [1, 1, 4, 16] and becomes [1, 1, 8, 8] after one turn.

    ONNX Runtime believes the declaration, and computes the test of a guard when it loads the model.
    """
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    main (float[1,1,4,16] x, int64 m, bool go) => (float[1,1,h,w] y) {
      y = Loop (m, go, x) <body = turn (int64 i, bool c, float[1,1,4,16] s)
        => (bool d, float[1,1,4,16] t) {
          d = Identity (c)
          u = Conv <pads = [1,1,1,1]> (s, k)
          t = Reshape (u, shape)
      }>
    }
    """
    model = onnx.parser.parse_model(text)
    kernel = np.arange(1, 10, dtype=np.float32).reshape(1, 1, 3, 3)
    model.graph.initializer.append(numpy_helper.from_array(kernel, "k"))
    shape = np.array([1, 1, 8, 8], np.int64)
    model.graph.initializer.append(numpy_helper.from_array(shape, "shape"))
    report = site(model, factor)
    assert (report.status, report.code) == ("refused", "unknown-extent")
    assert (
        "is declared with an extent of 4, which other iterations of a loop need not"
        in report.reason
    )
