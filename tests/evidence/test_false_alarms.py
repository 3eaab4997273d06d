"""No right fold is rejected: real models, traps and random Convs in every form."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tempfile
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings

from tests.rewrite.test_properties import convs, model_of
from tests.shared import MODELS, SHARED, generate, needs_models
from tests.test_traps import NAMES, SCRIPT
from widthfold_onnx import AxisName, FoldOptions, Layout, optimize
from widthfold_onnx.evidence.proof.program import program
from widthfold_onnx.evidence.proved import proved
from widthfold_onnx.model.loader import load

EVERYTHING = {"max_channels": 4096, "mix_samples": True}
"""Sites that a user would rather leave alone are tested too."""

AXES = (AxisName.AUTO, AxisName.BATCH, AxisName.HEIGHT, AxisName.WIDTH)
LAYOUTS = (Layout.NCHW, Layout.NHWC)
SWEEP = [
    FoldOptions(factor=factor, axis=axis, layout=layout, ragged=ragged, **EVERYTHING)
    for factor, axis, layout, ragged in product((2, 4, 8), AXES, LAYOUTS, (False, True))
]
QUICK = [
    FoldOptions(factor=8, **EVERYTHING),
    FoldOptions(factor=4, ragged=True, layout=Layout.NHWC),
]
ERROR_BITS = 50
"""Of the bound on the probability that a difference is missed, at least."""

LARGE = ("accelerated_features__xfeat", "basic-pitch__nmp", "onnxruntime-extensions__pytorch_super")

needs_traps = pytest.mark.skipif(not (SHARED / SCRIPT).is_file(), reason=f"no {SHARED / SCRIPT}")
by_model = pytest.mark.parametrize("model", MODELS, ids=[path.stem for path in MODELS])


@pytest.fixture(scope="module")
def traps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate(SCRIPT, tmp_path_factory)


def proved_equal(model: Path, options: list[FoldOptions], folder: Path) -> int:
    """Prove all different foldings of a model; return how many there are."""
    out = folder / "out.onnx"
    original = load(model)
    before = program(original.proto, original.folder)
    seen = set()
    for choice in options:
        folded = optimize(model, out, choice, None).summary.folded
        digest = hashlib.sha256(out.read_bytes()).digest()
        if not folded or digest in seen:
            continue
        seen.add(digest)
        result = load(out)
        found = proved(before, program(result.proto, result.folder), choice.input_shapes, {})
        assert found.verdict == "equal", (choice, found.reason)
        assert found.error_bits >= ERROR_BITS
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
@by_model
def test_real_models(model: Path, tmp_path: Path) -> None:
    if not model.stem.startswith(LARGE):
        proved_equal(model, with_shapes(model, QUICK), tmp_path)


@needs_traps
@pytest.mark.parametrize("name", NAMES)
def test_traps(traps: Path, name: str, tmp_path: Path) -> None:
    proved_equal(traps / f"{name}.onnx", QUICK, tmp_path)


@pytest.mark.slow
@needs_models
@by_model
def test_real_models_in_every_form(model: Path, tmp_path: Path) -> None:
    print(proved_equal(model, with_shapes(model, SWEEP), tmp_path))


@pytest.mark.slow
@needs_traps
@pytest.mark.parametrize("name", NAMES)
def test_traps_in_every_form(traps: Path, name: str, tmp_path: Path) -> None:
    print(proved_equal(traps / f"{name}.onnx", SWEEP, tmp_path))


def random_conv(case: tuple) -> None:
    """Fold one Conv with random float weights and prove it."""
    shape, weight_shape, attributes, _, options, open_axes, opset = case
    rng = np.random.default_rng(weight_shape)
    weight, bias = (
        rng.standard_normal(extents).astype(np.float32)
        for extents in (weight_shape, weight_shape[:1])
    )
    model = model_of(shape, weight, bias, attributes, opset, open_axes)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "conv.onnx"
        path.write_bytes(model.SerializeToString())
        proved_equal(path, [options], Path(name))


@settings(max_examples=60, deadline=None)
@given(convs())
def test_random_convs(case: tuple) -> None:
    random_conv(case)


@pytest.mark.slow
@settings(max_examples=5000, deadline=None)
@given(convs())
def test_many_random_convs(case: tuple) -> None:
    random_conv(case)
