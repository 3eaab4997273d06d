"""Loads the shared libraries of GPU providers from pip packages, and names a missing one."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import io
import sys
from pathlib import Path
from typing import Any

from widthfold_onnx.options import Provider
from widthfold_onnx.text import printable

_OWN = {
    Provider.CUDA: "onnxruntime_providers_cuda",
    Provider.TENSORRT: "onnxruntime_providers_tensorrt",
}
_CUDNN = "libcudnn.so.9"
_OPENED_LATER = {
    Provider.CUDA: (_CUDNN,),
    Provider.TENSORRT: (_CUDNN,),
}
"""Libraries opened when a provider's first Conv runs, not when it is loaded (onnxruntime#29252)."""

_TENSORRT = ("libnvinfer.so*", "libnvinfer_plugin.so*", "libnvonnxparser.so*")
"""In the order of their dependencies."""


def preload(runtime: Any) -> None:
    """Load the libraries of CUDA, cuDNN and TensorRT that pip packages hold.

    By itself the runtime looks for these packages beside its own folder only; they may as well lie
    in another folder that Python imports from. What is not found is left to the system's loader.

    Args:
        runtime: the module of ONNX Runtime.
    """
    with contextlib.redirect_stdout(io.StringIO()):  # it prints missing libraries
        for folder in (lib for place in _places("nvidia") for lib in sorted(place.glob("*/lib"))):
            is_cudnn = folder.parent.name == "cudnn"
            runtime.preload_dlls(cuda=not is_cudnn, cudnn=is_cudnn, directory=str(folder))
        runtime.preload_dlls()
    places = _places("tensorrt_libs")
    for library in (path for name in _TENSORRT for place in places for path in place.glob(name)):
        with contextlib.suppress(OSError):  # `missing_library` names what is missing
            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


def missing_library(runtime: Any, provider: Provider) -> str | None:
    """Return the loader's message on the library that a provider lacks, None if there is none.

    Args:
        runtime: the module of ONNX Runtime.
        provider: CUDA or TENSORRT.
    """
    folder = Path(runtime.__file__).parent / "capi"
    own = list(folder.glob(f"*{_OWN[provider]}.*"))
    try:
        for library in folder.glob("*onnxruntime_providers_shared.*"):
            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        for library in own:
            ctypes.CDLL(str(library))
        for name in _OPENED_LATER[provider] if own and sys.platform == "linux" else ():
            ctypes.CDLL(name)
    except OSError as error:
        return printable(str(error).replace(f"{folder}/", ""))
    return None


def cudnn_version() -> tuple[int, ...]:
    """Return the version of cuDNN 9 that is loaded, or would be; () if none can be."""
    with contextlib.suppress(OSError, AttributeError):
        ask = ctypes.CDLL(_CUDNN).cudnnGetVersion
        ask.restype = ctypes.c_size_t
        number = int(ask())
        return number // 10000, number // 100 % 100, number % 100
    return ()


def _places(package: str) -> list[Path]:
    """Return the folders of a package, which may be spread over several."""
    spec = importlib.util.find_spec(package)
    return [Path(place) for place in (spec and spec.submodule_search_locations) or ()]
