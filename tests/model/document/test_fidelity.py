"""Parts that are not folded come out as they went in: one probe model per feature of the format."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.folding import fold_model, optimize
from tests.model.features import (
    FEATURES,
    RNG,
    WEIGHT,
    base,
    devices,
    inner_graph,
    noted,
    old_inputs,
    sparse_initializer,
)
from tests.model.fidelity import assert_only_folded, graphs
from widthfold_onnx.model.check import checked
from widthfold_onnx.model.proto.tensors import BITS, DTYPES
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.options import FoldOptions

OPTIONS = FoldOptions(factor=2)
WHEEL = sorted(Path(onnx.__file__).parent.rglob("*.onnx"))


def folded(model: onnx.ModelProto, tmp_path: Path) -> tuple[onnx.ModelProto, int]:
    """The result in memory; the way through files must give the same."""
    untouched = model.SerializeToString()
    result, sites = fold_model(model, OPTIONS)
    assert model.SerializeToString() == untouched
    path, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    path.write_bytes(untouched)
    report = optimize(path, out, OPTIONS, None)
    assert report.sites == sites
    written = onnx.ModelProto.FromString(out.read_bytes())
    # Older releases of protobuf call a NaN different from itself.
    same = (m.SerializeToString(deterministic=True) for m in (written, result))
    assert next(same) == next(same)
    return result, report.summary.folded


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.__name__)
def test_a_feature_survives(feature, tmp_path):
    model = feature()
    result, count = folded(model, tmp_path)
    kinds = [n.op_type for g in graphs(model.graph) for n in g.node]
    assert 0 < kinds.count("Conv") <= count <= sum(("", kind) in OPERATORS for kind in kinds)
    added = assert_only_folded(model, result)
    assert all("/widthfold" in name for name in added)
    checked(result, None)
    assert objection(result) == objection(model)


@pytest.mark.parametrize("raw", [False, True], ids=["typed", "raw"])
@pytest.mark.parametrize("kind", sorted(DTYPES), ids=TensorProto.DataType.Name)
def test_an_initializer_of_every_dtype_survives(kind, raw, tmp_path):
    if raw and kind == TensorProto.STRING:
        pytest.skip("strings are never raw")
    model = base()
    count = 5
    if kind == TensorProto.STRING:
        tensor = helper.make_tensor("k", kind, [count], [b"\xff", b"", b"a", b"b", b"c"])
    elif raw:
        size = (count * BITS[kind] + 7) // 8
        data = RNG.integers(0, 2 if kind == TensorProto.BOOL else 256, size).astype(np.uint8)
        data[-1] &= (1 << (count * BITS[kind] - 1) % 8 + 1) - 1  # padding is zero
        tensor = TensorProto(name="k", data_type=kind, dims=[count], raw_data=data.tobytes())
    else:
        tensor = helper.make_tensor("k", kind, [count], [0, 1, 1, 0, 1])
        assert not tensor.HasField("raw_data")
    noted(tensor)
    model.graph.initializer.append(tensor)
    result, count = folded(model, tmp_path)
    assert count == 1
    assert_only_folded(model, result)


@pytest.mark.parametrize("version", range(4, onnx.IR_VERSION + 1))
def test_every_ir_version_survives(version, tmp_path):
    model = base()
    model.ir_version = version
    model.opset_import[0].version = 9
    result, count = folded(model, tmp_path)
    assert count == 1
    assert_only_folded(model, result)


@pytest.mark.parametrize("version", [3, 4])
def test_the_runtime_asks_for_the_same_inputs(version):
    """Below IR version 4 constants are inputs that the runtime does not ask for."""
    ort = pytest.importorskip("onnxruntime")
    model = old_inputs()
    if version == 4:
        del model.graph.input[1:]
    model.ir_version = version
    result, _ = fold_model(model, OPTIONS)
    sessions = [ort.InferenceSession(m.SerializeToString()) for m in (model, result)]
    for ask in ("get_inputs", "get_overridable_initializers", "get_outputs"):
        first, second = ([(v.name, v.type, v.shape) for v in getattr(s, ask)()] for s in sessions)
        assert first == second


def test_negative_zeros_and_subnormals_of_the_folded_weight_are_copied_as_bits():
    model = base()
    bits = np.frombuffer(model.graph.initializer[0].raw_data, np.uint32).copy()
    bits[::5], bits[::7], bits[::11] = 0x80000000, 0x00000001, 0x7F7FFFFF
    model.graph.initializer[0].raw_data = bits.tobytes()
    result, _ = fold_model(model, OPTIONS)
    tensor = next(t for t in result.graph.initializer if t.name.startswith("w/"))
    placed = np.frombuffer(tensor.raw_data, np.uint32)
    assert set(bits.tolist()) | {0} == set(placed.tolist()) | {0}


# --- sites that are left alone for an annotation of theirs ---------------------------------------


def test_a_sharded_conv_is_refused():
    model = devices()
    configuration = model.graph.node[0].device_configurations.add(configuration_id="two")
    configuration.sharding_spec.add(tensor_name="c", device=[0, 1])
    result, sites = fold_model(model, OPTIONS)
    assert [site.code for site in sites] == ["sharded"]
    assert result == model


def test_an_annotated_weight_is_refused():
    model = base()
    model.graph.quantization_annotation.add(tensor_name="w")
    result, sites = fold_model(model, OPTIONS)
    assert [site.code for site in sites] == ["weight-annotated"]
    assert result == model


def training() -> onnx.ModelProto:
    model = base()
    step = inner_graph("step", "(float[3, 2, 3, 3] grad) => (float[3, 2, 3, 3] moved) {}")
    step.node.append(helper.make_node("Sub", ["w", "grad"], ["moved"], name="conv/widthfold/conv"))
    info = model.training_info.add(algorithm=step)
    info.update_binding.add(key="w", value="moved")
    noted(step)
    return model


def test_a_weight_that_training_changes_is_refused():
    model = training()
    result, sites = fold_model(model, OPTIONS)
    assert [site.code for site in sites] == ["weight-trained"]
    assert result == model


def test_training_of_something_else_is_carried(tmp_path):
    model = training()
    model.graph.initializer.append(numpy_helper.from_array(WEIGHT, "other"))
    info = model.training_info[0]
    info.update_binding[0].key = info.algorithm.node[0].input[0] = "other"
    result, count = folded(model, tmp_path)
    assert count == 1
    assert "conv/widthfold/conv" not in assert_only_folded(model, result)


def test_nothing_is_said_about_what_the_graph_library_cannot_carry(tmp_path):
    path = tmp_path / "in.onnx"
    path.write_bytes(sparse_initializer().SerializeToString())
    code = (
        "import sys; from pathlib import Path; import widthfold_onnx as w; "
        "w.optimize(Path(sys.argv[1]), factor=2)"
    )
    done = subprocess.run([sys.executable, "-c", code, path], check=True, capture_output=True)
    assert (done.stdout, done.stderr) == (b"", b"")


def objection(model: onnx.ModelProto) -> str:
    """Return the error of the checker of onnx, "" if it accepts the model."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:  # noqa: TID251 - the error
        return str(error)
    return ""


def test_models_of_the_onnx_package():
    options = FoldOptions(factor=2, ragged=True, max_channels=1 << 20)
    assert len(WHEEL) > 100
    seen = 0
    for path in WHEEL:
        model = onnx.load(path, load_external_data=False)
        result, sites = fold_model(model, options, path.parent)
        if any(site.status == "folded" for site in sites):
            seen += 1
            assert_only_folded(model, result)
        else:
            assert result == model, path.name
        assert objection(result) == objection(model) == "", path.name
    assert seen > 10
