"""Import ONNX Runtime with the shared libraries that it needs, and shorten its errors.

Of the other modules only `model.runtime_operators` imports it, to list its operators. It is
imported on first use, so that models can be rewritten without it. The shared libraries of GPU
providers come from pip packages; messages name a missing library.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import io
import math
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.options import Provider
from widthfold_onnx.runtime.provider_traits import CUDNN, traits_of
from widthfold_onnx.text import printable

_FATAL = 4
"""Severity at which the runtime's logger prints fatal errors only."""

_LONGEST = 500

_DEVICE = re.compile(r"\bCU\w+ failure [^;]*|\[OpenVINO-EP\] .*")
"""The part of a message that says what went wrong: ``CUDA failure 35: ...`` up to a semicolon, or
``[OpenVINO-EP] ...``. Before it stand signatures of C++ functions, behind it the name of the
host."""


@cache
def runtime() -> Any:
    """Import the module; it logs fatal errors only.

    Raises:
        UnverifiedError: it is not installed.
    """
    try:
        import onnxruntime  # noqa: TID251 - no other file imports the runtime
    except ImportError as error:
        raise UnverifiedError(
            f"ONNX Runtime cannot be imported ({printable(str(error))}): "
            "pip install 'widthfold-onnx[cpu]', or [gpu] for CUDA"
        ) from error
    onnxruntime.set_default_logger_severity(_FATAL)
    return onnxruntime


def runtime_version() -> str:
    """Return the version of ONNX Runtime, "" if it is not installed.

    It is read from the source of the module: a dozen packages install it, some with version numbers
    of their own. The module is imported only if its source has no such line.

    Raises:
        UnverifiedError: it had to be imported, and that failed.
    """
    spec = importlib.util.find_spec("onnxruntime")
    if spec is None or spec.origin is None:
        return ""
    text = Path(spec.origin).read_text(encoding="utf-8")
    line = re.search(r"""^__version__ = ["'](.+)["']""", text, re.MULTILINE)
    return line[1] if line else str(runtime().__version__)


def quiet_options(entries: Mapping[str, str]) -> Any:
    """Return the options of a session that prints nothing, with these entries."""
    options = runtime().SessionOptions()
    options.log_severity_level = _FATAL
    for name, value in entries.items():
        options.add_session_config_entry(name, value)
    return options


def new_session(model: bytes | str, options: Any, providers: Sequence[object]) -> Any:
    """Open a session that tries no other providers than these.

    Where that fails, older releases try others all the same, and print a message, which is dropped.

    Raises:
        Exception: one of `failures`.
    """
    with contextlib.redirect_stdout(io.StringIO()):
        session = runtime().InferenceSession(model, options, providers=providers, enable_fallback=0)
    session.disable_fallback()  # of runs, for the same releases
    return session


@contextlib.contextmanager
def run_options(seconds: float) -> Iterator[Any]:
    """Yield options that stop a run after some seconds; None if there is no limit."""
    if math.isinf(seconds):
        yield None
        return
    options = runtime().RunOptions()
    timer = threading.Timer(seconds, setattr, (options, "terminate", True))
    timer.start()
    try:
        yield options
    finally:
        timer.cancel()


@cache
def failures() -> tuple[type[Exception], ...]:
    """Return the exceptions of the runtime, which have no common base, and of its Python layer."""
    binding = runtime().capi.onnxruntime_pybind11_state
    types = [item for item in vars(binding).values() if isinstance(item, type)]
    return (RuntimeError, ValueError, *(item for item in types if issubclass(item, Exception)))


_LACKING = ("Dilation not supported for AutoPadType",)
"""Parts of messages that mean a missing kernel, in exceptions that usually mean wrong inputs."""


def lacks_kernel(error: Exception) -> bool:
    """Check whether a runtime error says that it has no kernel for a node, whatever its inputs."""
    kind = runtime().capi.onnxruntime_pybind11_state.NotImplemented
    return isinstance(error, kind) or any(text in str(error) for text in _LACKING)


def error_text(error: Exception, model: Path | None = None, name: str = "") -> str:
    r"""Return an error of the runtime as one line; of an error of a device, only its message.

    Args:
        error: the exception.
        model: a file whose path is replaced by a name; None replaces nothing.
        name: that name; "" takes the name of the file.

    >>> error_text(RuntimeError("f() [with T = x] CUDA failure 2: out of memory ; GPU=0 ; host=h"))
    'CUDA failure 2: out of memory'
    >>> error_text(RuntimeError("a.cc:1 f() [OpenVINO-EP] Loading: Exception from b.cpp:2:\nnone"))
    '[OpenVINO-EP] Loading: Exception from b.cpp:2: none'
    >>> error_text(RuntimeError("no such node\n"))
    'no such node'
    """
    text = str(error) if model is None else str(error).replace(str(model), name or model.name)
    line = " ".join(text.split())
    message = _DEVICE.search(line)
    return printable((message[0] if message else line).strip(), _LONGEST)


_TENSORRT = ("libnvinfer.so*", "libnvinfer_plugin.so*", "libnvonnxparser.so*")
"""In the order of their dependencies."""


def preload() -> None:
    """Load the libraries of CUDA, cuDNN and TensorRT that pip packages hold.

    The runtime itself looks for these packages only beside its own folder, but they may be in any
    folder that Python imports from. The loader of the system finds the other libraries.
    """
    onnxruntime = runtime()
    with contextlib.redirect_stdout(io.StringIO()):  # it prints missing libraries
        for folder in (
            lib for root in _package_folders("nvidia") for lib in sorted(root.glob("*/lib"))
        ):
            is_cudnn = folder.parent.name == "cudnn"
            onnxruntime.preload_dlls(cuda=not is_cudnn, cudnn=is_cudnn, directory=str(folder))
        onnxruntime.preload_dlls()
    roots = _package_folders("tensorrt_libs")
    for file in (path for name in _TENSORRT for root in roots for path in root.glob(name)):
        with contextlib.suppress(OSError):  # `missing_library` names the missing library
            ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)


def missing_library(provider: Provider) -> str | None:
    """Return the loader's message on the library that a provider lacks, None if it lacks none.

    It is also None for most providers: their libraries are not known (`ProviderTraits.library`).
    """
    folder, traits = Path(runtime().__file__).parent / "capi", traits_of(provider)
    libraries = list(folder.glob(f"*{traits.library}.*")) if traits.library else []
    try:
        for file in folder.glob("*onnxruntime_providers_shared.*"):
            ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)
        for file in libraries:
            ctypes.CDLL(str(file))
        for name in traits.opened_later if any(file.suffix == ".so" for file in libraries) else ():
            ctypes.CDLL(name)
    except OSError as error:
        return printable(str(error).replace(f"{folder}/", ""))
    return None


def cudnn_version() -> tuple[int, ...]:
    """Return the version of cuDNN 9, which is loaded for this; () if it cannot be."""
    with contextlib.suppress(OSError, AttributeError):
        ask = ctypes.CDLL(CUDNN).cudnnGetVersion
        ask.restype = ctypes.c_size_t
        number = int(ask())
        return number // 10000, number // 100 % 100, number % 100
    return ()


def _package_folders(package: str) -> list[Path]:
    """Return the folders of a package; a namespace package has several."""
    spec = importlib.util.find_spec(package)
    return [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]
