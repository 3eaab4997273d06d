"""No right fold is rejected: real models, traps and random Convs in every form."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper

from tests.rewrite.checked_fold import Drawn
from tests.rewrite.drawn.convs import convs
from tests.shared import MODELS, SHARED, generate, needs_models
from tests.whole_models.traps import NAMES, SCRIPT
from widthfold_onnx.decide.fixed import decide_fixed
from widthfold_onnx.decide.outcomes import Decided, optimize_report
from widthfold_onnx.evidence.delivery import Delivery
from widthfold_onnx.evidence.proof.program import Program
from widthfold_onnx.evidence.proof.proving import proof_report
from widthfold_onnx.model.loader import Model, load
from widthfold_onnx.options import AxisName, FoldOptions, Layout
from widthfold_onnx.pipeline import deliver
from widthfold_onnx.rewrite.rewriting import Rewriting

EVERYTHING = {"max_channels": 4096, "mix_samples": True}
"""Sites that a user would rather leave alone are tested too."""

AXES = (AxisName.AUTO, AxisName.BATCH, AxisName.HEIGHT, AxisName.WIDTH)
LAYOUTS = (Layout.NCHW, Layout.NHWC)
QUICK = [
    FoldOptions(factor=8, **EVERYTHING),
    FoldOptions(factor=4, ragged=True, layout=Layout.NHWC),
]
ERROR_BITS = 50
"""Of the bound on the probability that a difference is missed, at least."""

LARGE = (
    *("accelerated_features__xfeat", "basic-pitch__nmp", "onnxruntime-extensions__pytorch_super"),
    *("TensorRT-polygraphy__residual_block", "silero-vad__silero_vad"),
    "libfacedetection.train__yunet_n_dynamic",
)
"""Models whose proofs take a quarter of a minute or more: at night, in every form of one factor."""

UNFOLDED = frozenset(
    {"Marabou__fc_matMul", "overridable_weight", "output_is_initializer", "constant_if"}
    | {"two_random_nodes", "pad_before_avgpool", "pad_before_maxpool", "times_zero"}
    | {"negative_zero", "cast_through_fp16", "reshape_zero_minus_one", "reshape_allowzero_empty"}
    | {"dynamic_shape_reshape", "slice_slice_negative", "column_bias"}
)
"""Models without a layer that these options fold; every other one has at least one fold."""

needs_traps = pytest.mark.skipif(not (SHARED / SCRIPT).is_file(), reason=f"no {SHARED / SCRIPT}")
SMALL = [path for path in MODELS if not path.name.startswith(LARGE)]
FACTORS = (2, 4, 8)
SWEEP = [(path, factor) for path in MODELS for factor in (FACTORS if path in SMALL else (4,))]


@pytest.fixture(scope="module")
def traps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate(SCRIPT, tmp_path_factory)


def every_form(factor: int) -> list[FoldOptions]:
    """All options that lead to other folds by a factor."""
    return [
        FoldOptions(factor=factor, axis=axis, layout=layout, ragged=ragged, **EVERYTHING)
        for axis, layout, ragged in product(AXES, LAYOUTS, (False, True))
    ]


def proved_equal(
    model: onnx.ModelProto, options: list[FoldOptions], folder: Path | None = None
) -> int:
    """Prove all different foldings of a model; return how many there are.

    Layers whose guards would choose the fold at no sizes are left out, as `optimize` does.
    """
    before, original = Program.of(model, folder), Model(model, folder)
    seen: set[bytes] = set()

    def send(decided: Decided, rewriting: Rewriting) -> Delivery:
        report = optimize_report(original, decided, rewriting)
        result = rewriting.carry_out()
        digest = hashlib.sha256(result.SerializeToString()).digest()
        if not decided.draft.is_changing or digest in seen:
            return Delivery(report)
        seen.add(digest)
        proof = proof_report(before, Program.of(result, folder), decided.draft.sizes, {})
        if not proof.unseen:
            assert proof.verdict == "equal", (decided.plan, proof.reason)
            assert proof.error_bits >= ERROR_BITS
        return Delivery(report, result, proof)

    for choice in options:
        deliver(original, decide_fixed(original, choice), send)
    return len(seen)


def with_shapes(model: Path, options: list[FoldOptions]) -> list[FoldOptions]:
    """The same once more with all extents given, where a model leaves some open."""
    values = onnx.load(model, load_external_data=False).graph.input
    if all(d.dim_value for v in values for d in v.type.tensor_type.shape.dim):
        return options
    feeds = json.loads((model.parent / "feeds.json").read_text())[model.name]["feeds"]
    shapes = {name: tuple(shape) for name, (_, shape) in feeds.items() if shape}
    return [*options, *(dataclasses.replace(choice, input_shapes=shapes) for choice in options)]


@needs_models
@pytest.mark.parametrize("model", SMALL, ids=[path.stem for path in SMALL])
def test_folds_of_real_models_are_proved_equal(model: Path) -> None:
    """Folds by 8 with the defaults are proved in `tests.whole_models.test_real_models`."""
    loaded = load(model)
    count = proved_equal(loaded.proto, with_shapes(model, QUICK[1:]), loaded.folder)
    assert (count > 0) == (model.stem not in UNFOLDED)


@needs_traps
@pytest.mark.parametrize("name", NAMES)
def test_folds_of_traps_are_proved_equal(traps: Path, name: str) -> None:
    count = proved_equal(onnx.load(traps / f"{name}.onnx"), QUICK, traps)
    assert (count > 0) == (name not in UNFOLDED)


@pytest.mark.parametrize("rows", ["two, go_on", "many, again"], ids=["counted", "while"])
def test_folds_behind_a_loop_are_proved_equal(rows: str) -> None:
    """The runtime stacks two rows, which only the turns of the loop tell."""
    model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["": 17]>
        g (float[2, 1, 16, 16] x) => (float[n, 4, 14, 14] y)
        <float[4, 1, 3, 3] w, int64 two = {{2}}, int64 many = {{{2**63 - 1}}},
         int64 one = {{1}}, bool yes = {{1}}> {{
          rows = Loop ({rows.split(",")[0]}, yes) <
            body = turn (int64 i, bool on) => (bool {rows.split()[1]}, float[1, 16, 16] row) {{
              {"again = Less (i, one)" if "again" in rows else "go_on = Identity (on)"}
              row = Gather (x, i)
            }}>
          y = Conv (rows, w)
        }}""")
    weight = np.random.default_rng(0).standard_normal((4, 1, 3, 3)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    assert proved_equal(model, [FoldOptions(factor=2, **EVERYTHING)]) == 1


@pytest.mark.slow
@needs_models
@pytest.mark.parametrize(
    ("model", "factor"), SWEEP, ids=[f"{path.stem} by {factor}" for path, factor in SWEEP]
)
def test_real_models_in_every_form_are_proved_equal(model: Path, factor: int) -> None:
    loaded = load(model)
    count = proved_equal(loaded.proto, with_shapes(model, every_form(factor)), loaded.folder)
    assert count > 0 or model.stem in UNFOLDED


@pytest.mark.slow
@needs_traps
@pytest.mark.parametrize("name", NAMES)
def test_traps_in_every_form_are_proved_equal(traps: Path, name: str) -> None:
    options = [choice for factor in FACTORS for choice in every_form(factor)]
    count = proved_equal(onnx.load(traps / f"{name}.onnx"), options, traps)
    assert count > 0 or name in UNFOLDED


@given(convs(), st.integers(0, 1 << 32))
def test_random_convs(drawn: Drawn, seed: int) -> None:
    """Weights that all differ take the place of the integers of `drawn`."""
    rng = np.random.default_rng(seed)
    for tensor in drawn.model.graph.initializer:
        numbers = rng.standard_normal(tensor.dims).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(numbers, tensor.name))
    proved_equal(drawn.model, [drawn.options])
