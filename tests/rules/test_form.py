"""The spread of Inf and NaN: the reported factor is what the runtime shows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.cli.tool import widthfold
from tests.folding import fold_model
from tests.running import LEVELS, run
from widthfold_onnx import UsageError
from widthfold_onnx.options import AxisName, FoldOptions, NonFinite

RNG = np.random.default_rng(13)


def model(shape: tuple[int, ...], kernel: tuple[int, ...], **attributes: str) -> onnx.ModelProto:
    """One Conv; padded so that each input reaches as many outputs, but at the borders."""
    listed = ", ".join(f"{name} = {value}" for name, value in attributes.items())
    parsed = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]> main (float{list(shape)} x) => (float y) {{
          [c] y = Conv {f"<{listed}>" if listed else ""} (x, w)
        }}"""
    )
    weight = RNG.uniform(0.5, 1, kernel).astype(np.float32)
    parsed.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    return parsed


def reached(proto: onnx.ModelProto, shape: tuple[int, ...], bad: float, place: int) -> int:
    x = np.ones(shape, np.float32)
    x.flat[place] = bad
    (y,) = run(proto, x, LEVELS[1])
    return int(np.count_nonzero(~np.isfinite(y)))


CASES = {
    "block-diagonal": ((1, 3, 16, 4), (4, 3, 1, 1), {}, FoldOptions(factor=8, axis=2), 8.0),
    "banded": ((1, 1, 64), (1, 1, 3), {"pads": "[1, 1]"}, FoldOptions(factor=8, axis=2), 8.0),
    "strided": (
        (1, 2, 60),
        (3, 2, 4),
        {"pads": "[1, 1]", "strides": "[2]"},
        FoldOptions(factor=3, axis=2),
        3.0,
    ),
    "samples": ((6, 2, 5), (3, 2, 1), {}, FoldOptions(factor=3, axis=AxisName.BATCH), 1.0),
}


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("name", CASES)
def test_the_factor_is_the_mean_over_all_inputs(name: str, bad: float) -> None:
    shape, kernel, attributes, options, factor = CASES[name]
    before = model(shape, kernel, **attributes)
    after, (site,) = fold_model(before, options)
    assert site.spread == factor
    # Away from the borders, where padding has no input.
    size = int(np.prod(shape))
    inner = range(size // 4, size // 4 + 24) if name != "samples" else range(size)
    counts = [[reached(m, shape, bad, i) for i in inner] for m in (before, after)]
    assert sum(counts[1]) == factor * sum(counts[0])
    assert all(new >= old for old, new in zip(*counts, strict=True))
    noted = {entry.key: entry.value for entry in after.metadata_props}
    assert noted == ({"widthfold.nonfinite": f"spread:{factor:g}"} if factor > 1 else {})


def test_a_note_of_another_run_is_replaced() -> None:
    proto = model((4, 3, 16, 4), (4, 3, 1, 1))
    proto.metadata_props.add(key="widthfold.nonfinite", value="spread:nonsense")
    proto.metadata_props.add(key="author", value="somebody")
    for axis, noted in ((2, {"widthfold.nonfinite": "spread:4"}), (0, {})):
        folded, (site,) = fold_model(proto, FoldOptions(factor=4, axis=axis))
        assert site.status == "folded"
        entries = {entry.key: entry.value for entry in folded.metadata_props}
        assert entries == {"author": "somebody", **noted}


def test_the_policy_is_asked_for_and_reported(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(model((1, 3, 16, 4), (4, 3, 1, 1)).SerializeToString())
    lines = {}
    for flags in (["--nonfinite", "refuse"], ["--nonfinite", "spread"], []):
        run = widthfold("optimize", path, "--factor", 8, *flags)
        assert run.code == 0
        lines[" ".join(flags)] = run.out
    assert "structural-zeros: " in lines["--nonfinite refuse"]
    assert lines["--nonfinite spread"] == lines[""]
    spread = "Inf and NaN may spread within a sample: 1 fold, up to 8 times as many outputs"
    assert spread in lines[""]
    for gone in (["--nonfinite", "maybe"], ["--nonfinite", "guard"], ["--ieee-strict"]):
        assert widthfold("optimize", path, *gone).code == 2


def test_an_unknown_policy_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="nonfinite is 'maybe', none of spread, refuse"):
        FoldOptions(nonfinite="maybe")
    assert FoldOptions(nonfinite="refuse").nonfinite == NonFinite.REFUSE
