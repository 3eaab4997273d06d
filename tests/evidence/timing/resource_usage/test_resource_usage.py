"""Memory of a model in a process that only runs it, and the bytes of its files."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.timing import resource_usage
from widthfold_onnx.evidence.timing.resource_usage import file_bytes
from widthfold_onnx.options import Provider, RuntimeOptions
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.runtime.settings import Setting

pytestmark = pytest.mark.processes

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'


def ones(size):
    return {"x": np.ones(size, np.float32)}


def peak_mib(path, level, feeds):
    setting = Setting(level, RuntimeOptions(provider=Provider.CPU))
    return resource_usage.usage(path, setting, feeds).peak_mib


def stored(folder, name, text):
    path = folder / name
    path.write_bytes(parser.parse_model(HEAD + text).SerializeToString())
    return path


def test_what_a_model_holds_in_between_counts(tmp_path):
    """The second model makes 64 Mi float32 of the same input before it adds them up."""
    text = (
        "g (float[1] x) => (float y) <int64[1] s = {%d}> {"
        " e = Expand(x, s)\n y = ReduceSum<keepdims = 0>(e) }"
    )
    paths = [stored(tmp_path, f"{n}.onnx", text % n) for n in (1, 1 << 26)]
    small, large = (peak_mib(path, Level.DISABLED, ones(1)) for path in paths)
    assert 10 < small < 2000
    assert 250 < large - small < 400


def test_the_shapes_that_are_asked_for_are_run(tmp_path):
    path = stored(tmp_path, "m.onnx", "g (float[N] x) => (float[N] y) { y = Neg(x) }")
    small, large = (peak_mib(path, Level.ALL, ones(size)) for size in (1, 1 << 25))
    assert large - small > 2 * 120  # input and output of 128 MiB each


def test_a_model_that_does_not_run_has_no_peak(tmp_path):
    path = stored(tmp_path, "m.onnx", "g (float[2] x) => (float[2] y) { y = NoSuch(x) }")
    with pytest.raises(UnverifiedError, match="does not load"):
        peak_mib(path, Level.ALL, ones(2))


def test_files_of_external_data_count_once_each(tmp_path):
    weights = [
        numpy_helper.from_array(np.full(size, 1, np.float32), name)
        for name, size in (("a", 1000), ("b", 2000), ("c", 500))
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in "xy"]
    nodes = [
        helper.make_node("Concat", ["x", *"abc"], ["y"], axis=0),
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    inside, outside = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(model, inside)
    assert file_bytes(inside) == inside.stat().st_size > 14000
    onnx.save(model, outside, save_as_external_data=True, location="w.data", size_threshold=3000)
    held = (tmp_path / "w.data").stat().st_size
    assert held >= 12000
    assert file_bytes(outside) == outside.stat().st_size + held


def test_what_the_caller_holds_does_not_count(tmp_path):
    path = stored(tmp_path, "m.onnx", "g (float[2] x) => (float[2] y) { y = Neg(x) }")
    held = np.ones(1 << 30, np.uint8)
    assert peak_mib(path, Level.ALL, ones(2)) < 700
    assert held[-1] == 1
