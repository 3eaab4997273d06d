"""The data of the targets: complete, sourced, in the wheel; what does not fit is refused."""

from __future__ import annotations

import msgspec
import pytest

from widthfold_onnx.errors import UsageError
from widthfold_onnx.options import Provider
from widthfold_onnx.system import Processor
from widthfold_onnx.tuning import targets
from widthfold_onnx.tuning.targets import Target, default_target, load_target, names

GIVEN = msgspec.to_builtins(load_target("cpu-avx512"))


def test_the_targets_of_the_first_release_are_there() -> None:
    assert names() == ["a100", "cpu-avx2", "cpu-avx512", "h100", "h200", "mi300x"]


@pytest.mark.parametrize("name", names())
def test_every_number_of_every_target_has_a_source(name: str) -> None:
    data = load_target(name)
    assert data.name == name
    others = {"mi300x": Provider.MIGRAPHX, "cpu-avx2": Provider.CPU, "cpu-avx512": Provider.CPU}
    assert data.provider is others.get(name, Provider.CUDA)
    assert all(len(text) > 10 for text in data.source.values())


def test_gpus_hold_the_figures_of_their_data_sheets() -> None:
    sheets = {
        "a100": (312e12, 2.039e12),
        "h100": (989e12, 3.35e12),
        "h200": (989e12, 4.8e12),
        "mi300x": (1307.4e12, 5.3e12),
    }
    for name, (flops, bandwidth) in sheets.items():
        assert 2 * load_target(name).rate["FLOAT16"] == flops
        assert load_target(name).memory_bandwidth == bandwidth


def test_an_unknown_target_is_named_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="'v100'; there are a100, cpu-avx2, cpu-avx512"):
        load_target("v100")
    for hostile in ("../cost", "", "a100.toml"):
        with pytest.raises(UsageError):
            load_target(hostile)


@pytest.mark.parametrize(
    "change",
    [
        {"lanes": 0},
        {"launch": -1e-6},
        {"efficiency": 1.5},
        {"transpose": 0.0},
        {"rate": {}},
        {"rate": {"FLOAT": 0.0}},
        {"source": {**GIVEN["source"], "lanes": ""}},
        {"source": {k: v for k, v in GIVEN["source"].items() if k != "cache"}},
        {"more": 1},
        {"provider": "tpu"},
    ],
)
def test_data_that_do_not_fit_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**GIVEN, **change}, Target)


@pytest.mark.parametrize(
    ("vectors", "name"),
    [("AVX-512 VNNI", "cpu-avx512"), ("AVX-512", "cpu-avx512"), ("AVX2", "cpu-avx2")],
)
def test_the_processor_chooses(vectors: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "processor", lambda: Processor("", "", vectors))
    assert default_target(Provider.AUTO) == default_target(Provider.CPU) == name
    assert default_target(Provider.OPENVINO) == name
    assert default_target(Provider.CUDA) == "a100"
    assert default_target(Provider.MIGRAPHX) == "mi300x"
