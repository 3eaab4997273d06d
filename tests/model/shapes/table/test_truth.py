"""Facts of values hold for the values that the runtime computes, one by one."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import warnings
from collections.abc import Iterator, Mapping

import numpy as np
import onnx
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from onnx.backend.test.case import node as onnx_cases
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument  # noqa: TID251 - its error

from tests.model.shapes.facts import agree, check
from tests.model.shapes.shaped import parsed
from tests.rewrite.checked_fold import Drawn
from tests.rewrite.drawn.convs import KINDS, conv_transposes, convs, quantized_convs
from tests.rewrite.drawn.graphs import of_convs, of_products
from tests.rewrite.drawn.products import dequantized_products, gemms, matmuls, quantized_products
from tests.running import Array
from tests.shared import MODELS, ROOT, needs_models
from widthfold_onnx.model.shapes.table import ShapeTable

# Some cases are of an operator set that onnx has released and the runtime has not yet.
os.environ["ALLOW_RELEASED_ONNX_OPSET_ONLY"] = "0"

OWN = sorted((ROOT / "models").glob("*.onnx"))


def fed(listed: Mapping[str, tuple[str, list[int]]]) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    feeds = {}
    for name, (kind, extents) in listed.items():
        is_rate = kind == "int64" and not extents
        feeds[name] = np.asarray(16000 if is_rate else rng.random(extents), kind)
    return feeds


@needs_models
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_real_models(path):
    listed = json.loads((path.parent / "feeds.json").read_text())[path.name]["feeds"]
    check(onnx.load(path), fed(listed))


@needs_models
def test_a_real_model_with_a_branch_for_each_sampling_rate():
    (path,) = (path for path in MODELS if path.stem == "silero-vad__silero_vad")
    listed = {"input": ("float32", [1, 288]), "state": ("float32", [2, 1, 128])}
    check(onnx.load(path), {**fed(listed), "sr": np.array(8000)})


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.stem)
def test_own_models(path):
    model = onnx.load(path)
    stored = {tensor.name for tensor in model.graph.initializer}
    listed = {}
    for value in model.graph.input:
        kind = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).name
        dims = [dim.dim_value or 48 for dim in value.type.tensor_type.shape.dim]
        if value.name not in stored:
            listed[value.name] = (kind, dims)
    check(model, fed(listed))


DRAWN = [convs(), conv_transposes(), of_convs(), of_products(), matmuls(), gemms()]
DRAWN += [quantized_products(), dequantized_products(), *map(quantized_convs, KINDS)]


@given(st.one_of(DRAWN))
def test_drawn_models(drawn: Drawn) -> None:
    (value,) = drawn.model.graph.input
    try:
        check(drawn.model, {value.name: drawn.x})
    except InvalidArgument:
        reject()  # by definition it returns something, but the runtime refuses it


STEPS = (
    *("{v} = Add ({a}, {b})", "{v} = Sub ({a}, {b})", "{v} = Min ({a}, {b})"),
    *("{v} = Max ({a}, {b})", "{v} = Neg ({a})", "{v} = Abs ({a})", "{v} = CumSum ({a}, zero)"),
    "m{v} = Mul ({a}, {b})\n{v} = Mod (m{v}, large)",
    "d{v} = Abs ({b})\ne{v} = Max (d{v}, ones)\n{v} = Div ({a}, e{v})",
    "d{v} = Abs ({b})\ne{v} = Max (d{v}, ones)\n{v} = Mod ({a}, e{v})",
    "c{v} = Greater ({a}, {b})\n{v} = Where (c{v}, {a}, {b})",
    "c{v} = Equal ({a}, {b})\nn{v} = Not (c{v})\n{v} = Where (n{v}, ones, {a})",
    "c{v} = Less (turned, two)\n{v} = Where (c{v}, {a}, {b})",
    "{v} = Gather ({a}, turned)",
    "f{v}, g{v} = Split <axis = 0> ({a}, parts)\n{v} = Concat <axis = 0> (g{v}, f{v})",
    "s{v} = Slice ({b}, one, two)\n{v} = ScatterND ({a}, place, s{v})",
    "s{v} = Slice ({b}, one, two)\n{v} = ScatterElements ({a}, one, s{v})",
    "f{v} = Cast <to = 1> ({a})\ng{v} = Mul (f{v}, third)\nh{v} = Ceil (g{v})\n"
    "{v} = Cast <to = 7> (h{v})",
    "f{v} = Cast <to = 11> ({a})\ng{v} = Abs (f{v})\nh{v} = Sqrt (g{v})\ni{v} = Floor (h{v})\n"
    "{v} = Cast <to = 7> (i{v})",
    "f{v} = Cast <to = 6> ({a})\n{v} = Cast <to = 7> (f{v})",
    "r{v} = ReduceSum <keepdims = 1> ({a})\n{v} = Expand (r{v}, three)",
    "r{v} = ReduceMax <keepdims = 1> ({a})\n{v} = Tile (r{v}, three)",
    "u{v} = Unsqueeze ({a}, zero1)\nt{v} = Transpose (u{v})\n{v} = Reshape (t{v}, minus)",
    "h{v} = Gather ({a}, zero)\nj{v} = Abs (h{v})\nk{v} = Mod (j{v}, five)\n"
    "l{v} = Add (k{v}, zero)\nr{v} = Range (zero, l{v}, step)\nn{v} = Shape (r{v})\n"
    "{v} = Add ({a}, n{v})",
    "c{v} = Greater ({a}, {b})\nn{v} = NonZero (c{v})\nz{v} = Shape (n{v})\n"
    "w{v} = Slice (z{v}, one, two)\n{v} = Add ({a}, w{v})",
    "p{v} = Mod ({a}, seven)\nq{v} = ConstantOfShape (p{v})\n{v} = Shape (q{v})",
    "p{v} = Mod ({a}, seven)\nq{v} = Expand (unit, p{v})\n{v} = Shape (q{v})",
    "q{v} = Concat <axis = 0> (zero1, {b})\nw{v} = Slice (q{v}, zero1, one)\n"
    "p{v} = Concat <axis = 0> (w{v}, minus)\nq2{v} = Reshape (x, p{v})\ny{v} = Shape (q2{v})\n"
    "{v} = Pad (y{v}, pads)",
)
"""Steps from one vector of three whole numbers, or two, to another."""

NUMBERS = {
    "zero": 0,
    "five": 5,
    "step": 1,
    "large": 1000003,
    "zero1": [0],
    "one": [1],
    "two": [2],
    "three": [3],
    "minus": [-1],
    "place": [[1]],
    "parts": [1, 2],
    "pads": [0, 1],
    "ones": [1, 1, 1],
    "seven": [7, 7, 7],
    "some": [5, -3, 8],
    "turned": [2, 0, -2],
}


@given(
    st.lists(st.tuples(st.sampled_from(STEPS), *[st.integers(0, 99)] * 2), min_size=1, max_size=9)
)
def test_drawn_arithmetic(steps) -> None:
    lines, pool = ["v0 = Shape (x)", "v1 = Identity (some)"], ["v0", "v1"]
    for step, first, second in steps:
        name = f"v{len(pool)}"
        lines.append(step.format(v=name, a=pool[first % len(pool)], b=pool[second % len(pool)]))
        pool.append(name)
    text = f"(float[N, 4, w] x) => (int64[n] y) {{ {chr(10).join(lines)}\n y = Neg ({pool[-1]}) }}"
    numbers = {name: np.int64(number) for name, number in NUMBERS.items()}
    model = parsed(text, opset=17, **numbers, third=np.float32(0.3), unit=np.ones((1, 1, 1)))
    check(model, {"x": np.zeros((2, 4, 8), np.float32)})
    facts = ShapeTable(model, {"x": (2, 4, 8)}).facts[""]
    assert all(facts[name].is_whole for name in pool)


def cases() -> Iterator[tuple[str, onnx.ModelProto, dict[str, object], dict[str, object]]]:
    """The models of all versions with which onnx tests its operators, with their outputs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # making the cases overflows on purpose
        for module in pkgutil.iter_modules(onnx_cases.__path__):
            importlib.import_module(f"{onnx_cases.__name__}.{module.name}")
    for case in onnx_cases._NodeTestCases:
        for read, returned in case.data_sets if case.model else ():
            graph = case.model.graph
            yield (
                case.name,
                case.model,
                {value.name: array for value, array in zip(graph.input, read, strict=False)},
                {value.name: array for value, array in zip(graph.output, returned, strict=False)},
            )


@pytest.mark.slow
@pytest.mark.parametrize("largest", [0, 99, 1 << 20], ids=["no", "small", "all"])
def test_the_cases_of_onnx_with_constants(largest: int) -> None:
    """Inputs of up to so many elements are constants, and outputs have no declared extents."""
    for name, original, read, returned in cases():
        model = onnx.ModelProto()
        model.CopyFrom(original)
        fixed = {
            key: np.asarray(array)
            for key, array in read.items()
            if isinstance(array, np.ndarray | np.generic) and array.size <= largest
        }
        model.ir_version = max(model.ir_version, 4)
        inputs = [value for value in model.graph.input if value.name not in fixed]
        del model.graph.input[:]
        model.graph.input.extend(inputs)
        for key, array in fixed.items():
            if array.dtype.kind in "biufV":
                model.graph.initializer.append(onnx.numpy_helper.from_array(array, key))
        for value in model.graph.output if largest else ():
            if value.type.HasField("tensor_type"):
                value.type.tensor_type.ClearField("shape")
        free = {value.name for value in inputs}
        pins = {k: a.shape for k, a in read.items() if k in free and isinstance(a, np.ndarray)}
        facts = ShapeTable(model, pins).facts[""]
        for key, array in returned.items():
            if isinstance(array, np.ndarray) and array.dtype != object:
                agree(facts[key], array, name)
