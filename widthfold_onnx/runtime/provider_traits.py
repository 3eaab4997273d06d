"""Describe the execution providers: each has an entry in `TRAITS`.

A provider without an entry has the defaults of `ProviderTraits`. The entries of CPU and OpenVINO
were measured, those of CUDA and TensorRT tried on GPUs (docs/gpu.md); the others follow the
documentation of the runtime (docs/providers.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from widthfold_onnx.options import Layout, Provider

CUDNN = "libcudnn.so.9"


class Level(StrEnum):
    """The level of the runtime's own optimizations."""

    DISABLED = "disabled"
    EXTENDED = "extended"
    ALL = "all"


@dataclass(frozen=True, kw_only=True)
class ProviderTraits:
    """The traits of a provider.

    Attributes:
        name: the runtime's name of it.
        install: the package that pip installs it with; "" if there is none.
        device: the device that it runs on: "nvidia" (described by NVML; inputs are uploaded before
            they are timed), "cpu" (described by its flags and caches), or any "other" (inputs are
            uploaded in every run).
        fallbacks: providers that take the nodes that it does not take, in this order.
        takes_options: False if it silently ignores provider options.
        options: values of options unless the caller chose others: all that affect times, so that
            no time depends on the defaults of a version.
        exact: options for comparisons of outputs; they override those of the caller.
        captures: options that record the first run and replay it, whatever is fed later.
        swept: options whose fastest value depends on the model, each with the values to try.
        threads: option that takes the number of threads; "" if it uses the threads of the session.
        folder: option that takes a folder, which all sessions of a process share.
        levels: the runtime's levels that are worth a try; the deployed level comes first.
        in_caller: True if with one thread it computes in the calling thread, whose processor time
            is then measured; else wall time is. False if not known.
        layout: the layout that it computes in.
        channels_last: option that switches `layout` to NHWC.
        target: device to predict times for (`tuning.targets`); "": the processor at hand.
        library: its own shared library, without prefix and suffix.
        opened_later: libraries opened when its first Conv runs, not when it is loaded
            (onnxruntime#29252).
        packages: Python packages whose versions decide how fast it is, by their contents.
    """

    name: str
    install: str = ""
    device: Literal["cpu", "nvidia", "other"] = "other"
    fallbacks: tuple[Provider, ...] = (Provider.CPU,)
    takes_options: bool = True
    options: Mapping[str, str] = field(default_factory=dict)
    exact: Mapping[str, str] = field(default_factory=dict)
    captures: frozenset[str] = frozenset()
    swept: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    threads: str = ""
    folder: str = ""
    levels: tuple[Level, ...] = (Level.ALL,)
    in_caller: bool = False
    layout: Layout = Layout.NCHW
    channels_last: str = ""
    target: str = ""
    library: str = ""
    opened_later: tuple[str, ...] = ()
    packages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


_CUDNN_PACKAGES = ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12")

TRAITS = {
    Provider.CPU: ProviderTraits(
        name="CPUExecutionProvider",
        install="widthfold-onnx[cpu]",
        device="cpu",
        fallbacks=(),
        takes_options=False,
        levels=(Level.ALL, Level.EXTENDED),
        in_caller=True,
    ),
    Provider.CUDA: ProviderTraits(
        name="CUDAExecutionProvider",
        install="widthfold-onnx[gpu]",
        device="nvidia",
        # The defaults of 1.31 except for the search: the algorithm that DEFAULT takes was ten times
        # slower than that of HEURISTIC.
        options={
            "cudnn_conv_algo_search": "HEURISTIC",
            "cudnn_conv_use_max_workspace": "1",
            "enable_cuda_graph": "0",
            "fuse_conv_bias": "0",
            "prefer_nhwc": "0",
            "use_tf32": "1",
        },
        exact={"use_tf32": "0"},
        captures=frozenset({"enable_cuda_graph"}),
        swept={
            "prefer_nhwc": ("0", "1"),
            "cudnn_conv_algo_search": ("HEURISTIC", "EXHAUSTIVE"),
            "fuse_conv_bias": ("0", "1"),
        },
        channels_last="prefer_nhwc",
        target="a100",
        library="onnxruntime_providers_cuda",
        opened_later=(CUDNN,),
        packages={"cudnn": _CUDNN_PACKAGES},
    ),
    Provider.TENSORRT: ProviderTraits(
        name="TensorrtExecutionProvider",
        install="widthfold-onnx[gpu]",
        device="nvidia",
        fallbacks=(Provider.CUDA, Provider.CPU),
        # Two models are built alike only if they share its measured times of kernels.
        options={"trt_builder_optimization_level": "3", "trt_timing_cache_enable": "True"},
        captures=frozenset({"trt_cuda_graph_enable"}),
        folder="trt_timing_cache_path",
        target="a100",
        library="onnxruntime_providers_tensorrt",
        opened_later=(CUDNN,),
        packages={
            "cudnn": _CUDNN_PACKAGES,
            "tensorrt": ("tensorrt", "tensorrt-cu13", "tensorrt-cu12"),
        },
    ),
    Provider.OPENVINO: ProviderTraits(
        name="OpenVINOExecutionProvider",
        install="widthfold-onnx[openvino]",
        device="cpu",
        # By itself it computes float32 in bfloat16 on processors that have it.
        options={"device_type": "CPU", "precision": "FP32"},
        threads="num_of_threads",
        # It optimizes graphs itself; its documentation advises to disable those of the runtime.
        levels=(Level.ALL, Level.DISABLED),
        in_caller=True,
        library="onnxruntime_providers_openvino",
    ),
    Provider.MIGRAPHX: ProviderTraits(
        name="MIGraphXExecutionProvider",
        install="onnxruntime-migraphx",
        options={"migraphx_fp16_enable": "0", "migraphx_exhaustive_tune": "0"},
        target="mi300x",
        library="onnxruntime_providers_migraphx",
    ),
    Provider.DML: ProviderTraits(name="DmlExecutionProvider", install="onnxruntime-directml"),
    Provider.COREML: ProviderTraits(
        name="CoreMLExecutionProvider",
        install="widthfold-onnx[cpu]",
        options={"ModelFormat": "MLProgram", "MLComputeUnits": "ALL"},
    ),
    Provider.QNN: ProviderTraits(name="QNNExecutionProvider", install="onnxruntime-qnn"),
    Provider.WEBGPU: ProviderTraits(
        name="WebGpuExecutionProvider",
        options={"preferredLayout": "NHWC"},
        captures=frozenset({"enableGraphCapture"}),
        layout=Layout.NHWC,
    ),
    Provider.XNNPACK: ProviderTraits(
        name="XnnpackExecutionProvider",
        device="cpu",
        threads="intra_op_num_threads",
        layout=Layout.NHWC,
    ),
}


def traits_of(provider: Provider) -> ProviderTraits:
    """Return the traits of a provider; one without an entry has the defaults."""
    return TRAITS.get(provider) or ProviderTraits(name=provider)
