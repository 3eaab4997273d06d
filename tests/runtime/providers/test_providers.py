"""Providers of the runtime: devices that work, silent fallbacks, libraries that do not load."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from widthfold_onnx.errors import UnverifiedError, UsageError
from widthfold_onnx.options import Provider
from widthfold_onnx.runtime import library
from widthfold_onnx.runtime.provider_traits import TRAITS, traits_of
from widthfold_onnx.runtime.providers import (
    check_options,
    obstacle,
    ranking,
    usable_provider,
)

NAMES = {provider: traits.name for provider, traits in TRAITS.items()}
CUDA_OPTIONS = traits_of(Provider.CUDA).options


class RuntimeOptions:
    """A stand-in for a GPU build of the runtime, which prints a lot, and falls back as told."""

    def __init__(self, folder, *, runs_on=None, available=None):
        self.__file__ = str(folder / "__init__.py")
        self.runs_on = runs_on
        self.available = available or list(NAMES.values())
        self.entries = {}
        self.preloaded = []

    def get_available_providers(self):
        return self.available

    def preload_dlls(self, **which):
        self.preloaded.append(which)
        print("Failed to load libsomething.so")

    def SessionOptions(self):  # noqa: N802 - the runtime's own name
        return SimpleNamespace(add_session_config_entry=self.entries.__setitem__)

    def InferenceSession(self, model, options, providers, enable_fallback):  # noqa: N802 - its name
        assert enable_fallback == 0
        assert NAMES[Provider.CPU] not in [name for name, _ in providers]
        if self.runs_on is None:
            raise RuntimeError("no kernel image")
        return SimpleNamespace(
            run=lambda outputs, feeds: [feeds["x"]],
            get_providers=lambda: [self.runs_on],
            disable_fallback=lambda: None,
        )


@pytest.fixture
def using(monkeypatch):
    """Put another runtime in the place of the installed one."""

    def use(runtime):
        monkeypatch.setattr(library, "runtime", lambda: runtime)
        monkeypatch.setattr(library, "failures", lambda: (RuntimeError,))
        obstacle.cache_clear()
        return runtime

    yield use
    obstacle.cache_clear()


def test_a_device_that_works_is_used_with_the_fallback_forbidden(using, tmp_path, capfd):
    runtime = using(RuntimeOptions(tmp_path, runs_on=NAMES[Provider.CUDA]))
    assert usable_provider(Provider.AUTO) is Provider.CUDA
    assert usable_provider(Provider.CUDA) is Provider.CUDA
    assert runtime.entries == {"session.disable_cpu_ep_fallback": "1"}
    assert capfd.readouterr() == ("", "")


def test_a_device_that_does_not_work_is_named_or_left_to_auto(using, tmp_path):
    using(RuntimeOptions(tmp_path))
    assert usable_provider(Provider.AUTO) is Provider.CPU
    with pytest.raises(UnverifiedError, match="provider cuda cannot be used: no kernel image"):
        usable_provider(Provider.CUDA)


def test_a_silent_fallback_is_no_device(using, tmp_path):
    using(RuntimeOptions(tmp_path, runs_on=NAMES[Provider.CPU]))
    assert usable_provider(Provider.AUTO) is Provider.CPU
    with pytest.raises(UnverifiedError, match="tensorrt cannot be used: no usable device"):
        usable_provider(Provider.TENSORRT)


def test_a_library_that_does_not_load_is_named_without_its_folder(using, tmp_path):
    (tmp_path / "capi").mkdir()
    (tmp_path / "capi" / "libonnxruntime_providers_cuda.so").write_text("no library")
    using(RuntimeOptions(tmp_path))
    with pytest.raises(UnverifiedError, match=r"libonnxruntime_providers_cuda\.so") as caught:
        usable_provider(Provider.CUDA)
    assert str(tmp_path) not in str(caught.value)


def test_a_build_without_the_provider_says_what_to_install(using, tmp_path):
    using(RuntimeOptions(tmp_path, available=[NAMES[Provider.CPU]]))
    assert usable_provider(Provider.AUTO) is Provider.CPU
    assert usable_provider(Provider.CPU) is Provider.CPU
    with pytest.raises(UnverifiedError, match=r"no CUDAExecutionProvider; pip install .*\[gpu\]"):
        usable_provider(Provider.CUDA)


def test_parity_asks_for_whole_float32_products():
    assert dict(ranking(Provider.CUDA, {}, 1, tf32=False))[NAMES[Provider.CUDA]]["use_tf32"] == "0"
    assert dict(ranking(Provider.CUDA, {}, 1, tf32=True))[NAMES[Provider.CUDA]]["use_tf32"] == "1"
    assert [name for name, _ in ranking(Provider.TENSORRT, {}, 1, tf32=False)] == [
        NAMES[Provider.TENSORRT],
        NAMES[Provider.CUDA],
        NAMES[Provider.CPU],
    ]


def test_parity_computes_in_full_whatever_was_chosen_and_time_as_chosen():
    for chosen in ("0", "1"):
        for tf32, expected in ((False, "0"), (True, chosen)):
            options = dict(ranking(Provider.CUDA, {"use_tf32": chosen}, 1, tf32=tf32))
            assert options[NAMES[Provider.CUDA]]["use_tf32"] == expected


def test_nothing_that_moves_times_is_left_to_the_runtime():
    cuda = dict(ranking(Provider.CUDA, {"prefer_nhwc": "1"}, 1, tf32=True))[NAMES[Provider.CUDA]]
    assert cuda == {
        "cudnn_conv_algo_search": "HEURISTIC",
        "cudnn_conv_use_max_workspace": "1",
        "enable_cuda_graph": "0",
        "fuse_conv_bias": "0",
        "prefer_nhwc": "1",
        "use_tf32": "1",
    }
    both = [
        dict(ranking(Provider.TENSORRT, chosen, 1, tf32=True))[NAMES[Provider.TENSORRT]]
        for chosen in ({}, {"trt_builder_optimization_level": "5"})
    ]
    assert [options["trt_builder_optimization_level"] for options in both] == ["3", "5"]
    folders = {options["trt_timing_cache_path"] for options in both}
    assert len(folders) == 1  # two models are built with one set of times
    assert Path(folders.pop()).is_dir()


def test_options_belong_to_the_provider_and_not_to_what_stands_in_for_it():
    for name, options in ranking(Provider.TENSORRT, {"trt_fp16_enable": "1"}, 1, tf32=True):
        assert ("trt_fp16_enable" in options) == (name == NAMES[Provider.TENSORRT])


class Choosy(RuntimeOptions):
    """A runtime that refuses all options except `CUDA_OPTIONS`."""

    def InferenceSession(self, model, options, providers, enable_fallback):  # noqa: N802 - its name
        _, settings = providers[0]
        unknown = settings.keys() - CUDA_OPTIONS.keys()
        if unknown:
            raise RuntimeError(f'Unknown provider option: "{unknown.pop()}".')
        return super().InferenceSession(model, options, providers, enable_fallback)


def test_an_option_that_the_runtime_refuses_is_wrong_usage(using, tmp_path):
    using(Choosy(tmp_path, runs_on=NAMES[Provider.CUDA]))
    check_options(Provider.CUDA, {"prefer_nhwc": "1"})
    with pytest.raises(UsageError) as caught:
        check_options(Provider.CUDA, {"prefer_nwhc": "1\n"})
    assert str(caught.value) == (
        r"provider cuda does not run with prefer_nwhc=1\x0a: "
        'Unknown provider option: "prefer_nwhc".'
    )


def test_the_cpu_ignores_options_so_they_are_refused(using, tmp_path):
    using(RuntimeOptions(tmp_path))
    check_options(Provider.CPU, {})
    with pytest.raises(UsageError, match="provider cpu takes no options: use_arena=0"):
        check_options(Provider.CPU, {"use_arena": "0"})


def test_a_captured_run_cannot_be_verified(using, tmp_path):
    using(RuntimeOptions(tmp_path, runs_on=NAMES[Provider.CUDA]))
    check_options(Provider.CUDA, {"enable_cuda_graph": "0"})
    with pytest.raises(UsageError, match="enable_cuda_graph repeats a run on its old inputs"):
        check_options(Provider.CUDA, {"enable_cuda_graph": "1"})
