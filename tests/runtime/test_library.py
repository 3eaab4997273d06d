"""The version of the runtime; libraries of NVIDIA's packages, which are loaded before it."""

import ctypes
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from widthfold_onnx.options import Provider
from widthfold_onnx.runtime import library


def test_the_version_of_the_runtime_is_its_own_whatever_package_installed_it(monkeypatch, tmp_path):
    assert library.runtime_version() == library.runtime().__version__
    module = tmp_path / "onnxruntime.py"
    module.write_text('"""of onnxruntime-directml 1.24.1.post2"""\n__version__ = "1.24.1"\n')
    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert library.runtime_version() == "1.24.1"
    module.write_text("__version__ = read_version()\n")
    assert library.runtime_version() == library.runtime().__version__, "its text does not tell"
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert library.runtime_version() == ""


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Pip packages in a folder that Python imports from, the runtime in another one."""
    for name in ("cu13", "cudnn", "nccl"):
        (tmp_path / "site" / "nvidia" / name / "lib").mkdir(parents=True)
    (tmp_path / "site" / "tensorrt_libs").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    return tmp_path / "site"


@pytest.fixture
def loaded(monkeypatch):
    """Names of the libraries that were loaded; the system has only the libraries in `there`."""
    names, there = [], set()

    def load(path, mode=0):
        names.append(Path(path).name)
        if Path(path).name not in there:
            raise OSError(f"{path}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", load)
    return SimpleNamespace(names=names, there=there)


def runtime(folder, monkeypatch):
    calls = []

    def preload_dlls(**which):
        calls.append(which)
        print("Failed to load libsomething.so")

    file = folder / "onnxruntime" / "__init__.py"
    module = SimpleNamespace(__file__=str(file), preload_dlls=preload_dlls, calls=calls)
    monkeypatch.setattr(library, "runtime", lambda: module)
    return module


def test_libraries_of_packages_elsewhere_are_loaded_and_nothing_is_printed(
    packages, tmp_path, loaded, capfd, monkeypatch
):
    module = runtime(tmp_path, monkeypatch)
    library.preload()
    nvidia = packages / "nvidia"
    assert {"cuda": True, "cudnn": False, "directory": str(nvidia / "cu13/lib")} in module.calls
    assert {"cuda": False, "cudnn": True, "directory": str(nvidia / "cudnn/lib")} in module.calls
    assert module.calls[-1] == {}  # the runtime looks for the remaining libraries by itself
    assert capfd.readouterr() == ("", "")


def test_those_of_tensorrt_are_loaded_in_the_order_of_their_needs(
    packages, tmp_path, loaded, monkeypatch
):
    for name in ("libnvonnxparser.so.10", "libnvinfer_plugin.so.10", "libnvinfer.so.10"):
        (packages / "tensorrt_libs" / name).touch()
    runtime(tmp_path, monkeypatch)
    library.preload()
    assert loaded.names == ["libnvinfer.so.10", "libnvinfer_plugin.so.10", "libnvonnxparser.so.10"]


def test_the_first_library_that_lacks_is_named(tmp_path, loaded, monkeypatch):
    capi = tmp_path / "onnxruntime" / "capi"
    capi.mkdir(parents=True)
    runtime(tmp_path, monkeypatch)
    assert library.missing_library(Provider.CUDA) is None  # nothing of it is installed
    for name in ("libonnxruntime_providers_shared.so", "libonnxruntime_providers_cuda.so"):
        (capi / name).touch()
        loaded.there.add(name)
    lacking = "libcudnn.so.9: cannot open shared object file"
    assert library.missing_library(Provider.CUDA) == lacking
    loaded.there.add("libcudnn.so.9")
    assert library.missing_library(Provider.CUDA) is None
    loaded.there.remove("libonnxruntime_providers_cuda.so")
    lacking = "libonnxruntime_providers_cuda.so: cannot open shared object file"
    assert library.missing_library(Provider.CUDA) == lacking


def test_the_version_of_cudnn_is_that_of_its_library(loaded, monkeypatch):
    assert library.cudnn_version() == ()

    class Library:
        def __init__(self, name):
            self.cudnnGetVersion = type("Ask", (), {"__call__": lambda self: 92405})()

    monkeypatch.setattr(ctypes, "CDLL", Library)
    assert library.cudnn_version() == (9, 24, 5)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert library.cudnn_version() == ()
