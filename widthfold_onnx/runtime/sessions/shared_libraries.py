"""Loads the shared libraries of GPU providers from pip packages, and names a missing one."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import io
from pathlib import Path

from widthfold_onnx.options import Provider
from widthfold_onnx.runtime.sessions import library
from widthfold_onnx.runtime.sessions.descriptions import CUDNN, described
from widthfold_onnx.text import printable

_TENSORRT = ("libnvinfer.so*", "libnvinfer_plugin.so*", "libnvonnxparser.so*")
"""In the order of their dependencies."""


def preload() -> None:
    """Load the libraries of CUDA, cuDNN and TensorRT that pip packages hold.

    By itself the runtime looks for these packages beside its own folder only; they may as well lie
    in another folder that Python imports from. What is not found is left to the system's loader.
    """
    runtime = library.runtime()
    with contextlib.redirect_stdout(io.StringIO()):  # it prints missing libraries
        for folder in (lib for place in _places("nvidia") for lib in sorted(place.glob("*/lib"))):
            is_cudnn = folder.parent.name == "cudnn"
            runtime.preload_dlls(cuda=not is_cudnn, cudnn=is_cudnn, directory=str(folder))
        runtime.preload_dlls()
    places = _places("tensorrt_libs")
    for found in (path for name in _TENSORRT for place in places for path in place.glob(name)):
        with contextlib.suppress(OSError):  # `missing_library` names what is missing
            ctypes.CDLL(str(found), mode=ctypes.RTLD_GLOBAL)


def missing_library(provider: Provider) -> str | None:
    """Return the loader's message on the library that a provider lacks, None if there is none.

    Of most providers no library is known.
    """
    folder, known = Path(library.runtime().__file__).parent / "capi", described(provider)
    own = list(folder.glob(f"*{known.library}.*")) if known.library else []
    try:
        for found in folder.glob("*onnxruntime_providers_shared.*"):
            ctypes.CDLL(str(found), mode=ctypes.RTLD_GLOBAL)
        for found in own:
            ctypes.CDLL(str(found))
        for name in known.opened_later if any(file.suffix == ".so" for file in own) else ():
            ctypes.CDLL(name)
    except OSError as error:
        return printable(str(error).replace(f"{folder}/", ""))
    return None


def cudnn_version() -> tuple[int, ...]:
    """Return the version of cuDNN 9 that is loaded, or would be; () if none can be."""
    with contextlib.suppress(OSError, AttributeError):
        ask = ctypes.CDLL(CUDNN).cudnnGetVersion
        ask.restype = ctypes.c_size_t
        number = int(ask())
        return number // 10000, number // 100 % 100, number % 100
    return ()


def _places(package: str) -> list[Path]:
    """Return the folders of a package, which may be spread over several."""
    spec = importlib.util.find_spec(package)
    return [Path(place) for place in (spec and spec.submodule_search_locations) or ()]
