"""Traits of providers, and names of others."""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path

import msgspec
import pytest

import widthfold_onnx
from tests.cli.tool import widthfold
from tests.small_models import MODELS
from widthfold_onnx.decide.fixed import decide_layout
from widthfold_onnx.errors import UsageError
from widthfold_onnx.options import (
    FoldOptions,
    Layout,
    Provider,
    RuntimeOptions,
    SearchOptions,
    VerifyOptions,
)
from widthfold_onnx.runtime import clock
from widthfold_onnx.runtime.clock import clock_name
from widthfold_onnx.runtime.provider_traits import TRAITS, Level, ProviderTraits, traits_of
from widthfold_onnx.runtime.providers import ranking
from widthfold_onnx.runtime.settings import settings_of
from widthfold_onnx.tuning.targets import default_target, load_target, names

OTHER = Provider("FooExecutionProvider")
COMPARED = re.compile(r"(?:is|is not|==|!=|in \()\s*Provider\.(?!AUTO)")
PACKAGE = Path(widthfold_onnx.__file__).parent
ABOUT_ONE = {
    "evidence/exact_kernels.py",  # its own kernels of bytes
    "evidence/timing/profile.py",  # its graph shows every node with its weights
    "tuning/search/session.py",  # the kind of a target, not of a provider
    "runtime/providers.py",  # it runs everything, so it is not tried
}
"""Files that may tell the CPU's provider from all others."""


def test_every_provider_is_described_under_its_name() -> None:
    assert set(TRAITS) == set(Provider) - {Provider.AUTO}
    for provider, traits in TRAITS.items():
        assert Provider(traits.name) is provider


@pytest.mark.parametrize("provider", TRAITS)
def test_the_traits_of_a_provider_agree_with_each_other(provider: Provider) -> None:
    traits = traits_of(provider)
    assert {*traits.exact, *traits.swept} <= traits.options.keys()
    assert all(traits.options[name] == values[0] for name, values in traits.swept.items())
    assert not {traits.threads, traits.folder} & traits.options.keys()
    assert traits.channels_last in {"", *traits.options}
    assert traits.target in {"", *names()}
    if traits.target:
        assert traits_of(load_target(traits.target).provider).device == traits.device
    assert traits.levels[0] is Level.ALL
    assert [*traits.fallbacks, provider].count(Provider.CPU) == 1
    assert traits.takes_options or not traits.options


def test_other_providers_are_called_what_the_runtime_calls_them() -> None:
    assert OTHER == Provider("FooExecutionProvider") == "FooExecutionProvider"
    assert hash(OTHER) == hash(Provider("FooExecutionProvider"))
    assert OTHER not in list(Provider)
    for same in (
        pickle.loads(pickle.dumps(OTHER)),
        copy.deepcopy(OTHER),
        msgspec.json.decode(msgspec.json.encode(OTHER), type=Provider),
    ):
        assert (same, same.value, str(same)) == (OTHER, OTHER.value, str(OTHER))


@pytest.mark.parametrize(
    "name", ["foo", "ExecutionProvider", "a bExecutionProvider", "\x1bExecutionProvider", "", 7]
)
def test_other_words_are_no_providers(name: object) -> None:
    with pytest.raises(ValueError, match="is not a valid Provider"):
        Provider(name)


@pytest.mark.parametrize("kind", [RuntimeOptions, SearchOptions, VerifyOptions])
def test_options_take_a_plain_word_for_a_provider(kind: type[RuntimeOptions]) -> None:
    assert kind(provider="cpu").provider is Provider.CPU
    assert kind(provider="FooExecutionProvider").provider == OTHER
    with pytest.raises(UsageError, match="provider is 'npu', none of auto, cpu, cuda"):
        kind(provider="npu")


def test_what_is_not_described_runs_with_defaults() -> None:
    assert traits_of(OTHER) == ProviderTraits(name=OTHER)
    assert ranking(OTHER, {"a": "1"}, 4, tf32=False) == [
        (OTHER, {"a": "1"}),
        ("CPUExecutionProvider", {}),
    ]
    assert [str(setting) for setting in settings_of(RuntimeOptions(provider=OTHER))] == ["all"]
    assert clock_name(RuntimeOptions(provider=OTHER)) == "wall"
    assert default_target(OTHER) == default_target(Provider.CPU)


def test_openvino_has_threads_precision_and_levels() -> None:
    (name, options), _ = ranking(Provider.OPENVINO, {}, 3, tf32=True)
    assert name == "OpenVINOExecutionProvider"
    assert options == {"device_type": "CPU", "precision": "FP32", "num_of_threads": "3"}
    own = ranking(Provider.OPENVINO, {"num_of_threads": "8", "precision": "FP16"}, 3, tf32=False)
    assert own[0][1] == {"device_type": "CPU", "precision": "FP16", "num_of_threads": "8"}
    settings = settings_of(RuntimeOptions(provider=Provider.OPENVINO))
    assert [setting.level for setting in settings] == [Level.ALL, Level.DISABLED]


def test_the_clock_of_the_thread_counts_only_where_all_work_is_done_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for provider in (Provider.CPU, Provider.OPENVINO):
        assert clock_name(RuntimeOptions(provider=provider)) == "thread"
        assert clock_name(RuntimeOptions(provider=provider, threads=2)) == "wall"
    elsewhere = RuntimeOptions(provider=Provider.OPENVINO, provider_options={"device_type": "GPU"})
    assert clock_name(elsewhere) == "wall"
    assert clock_name(RuntimeOptions(provider=Provider.CUDA)) == "wall"
    monkeypatch.setattr(clock, "has_fine_thread_clock", lambda: False)  # as on Windows
    assert clock_name(RuntimeOptions(provider=Provider.CPU)) == "wall"


@pytest.mark.parametrize(
    ("provider", "layout"),
    [(Provider.WEBGPU, "nhwc"), (Provider.XNNPACK, "nhwc"), (Provider.OPENVINO, "nchw")],
)
def test_a_fixed_factor_takes_the_layout_of_the_provider(provider: Provider, layout: str) -> None:
    options = RuntimeOptions(provider=provider)
    assert decide_layout(FoldOptions(factor=8), options).layout is Layout(layout)
    chosen = FoldOptions(factor=8, layout=Layout.NCHW)
    assert decide_layout(chosen, options).layout is Layout.NCHW


def test_providers_are_told_apart_by_their_traits_alone() -> None:
    files = {str(path.relative_to(PACKAGE)): path.read_text() for path in PACKAGE.rglob("*.py")}
    assert {name for name, text in files.items() if COMPARED.search(text)} == ABOUT_ONE


@pytest.mark.parametrize(
    ("provider", "code", "message"),
    [
        ("FooExecutionProvider", 4, "has no FooExecutionProvider; it has "),
        ("OpenVINOExecutionProvider", 4, "provider openvino cannot be used: this ONNX Runtime has"),
        ("migraphx", 4, "no MIGraphXExecutionProvider; pip install 'onnxruntime-migraphx'"),
        ("foo", 2, "'foo' is not one of 'auto', 'cpu', 'cuda', 'tensorrt', 'openvino'"),
        ("a\x1bExecutionProvider", 2, "is not one of"),
    ],
)
def test_one_that_cannot_be_used_is_one_line(provider: str, code: int, message: str) -> None:
    if provider.startswith("OpenVINO") and "OpenVINOExecutionProvider" in _available():
        pytest.skip("this runtime has OpenVINO")
    model = MODELS / "paper_conv.onnx"
    run = widthfold("verify", model, model, "--provider", provider)
    assert run.code == code, run
    assert message in run.err
    assert run.err.count("\n") == 1


def _available() -> list[str]:
    import onnxruntime  # noqa: TID251 - the runtime itself lists its providers

    return list(onnxruntime.get_available_providers())


@pytest.mark.parametrize("provider", TRAITS)
def test_the_page_says_what_is_known(provider: Provider) -> None:
    page = (PACKAGE.parent / "docs" / "providers.md").read_text(encoding="utf-8")
    (line,) = (line for line in page.splitlines() if line.startswith(f"| `{provider}` |"))
    traits = traits_of(provider)
    words = [f"{name}={value}" for name, value in traits.options.items()]
    for text in (
        traits.name,
        traits.install,
        traits.threads,
        *words,
        *traits.swept,
    ):
        assert text in line
