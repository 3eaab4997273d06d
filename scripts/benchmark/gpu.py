"""Ask a GPU who it is, whether it computes right, and how fast it copies and multiplies."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
from nets.layers import MIB, Layer

from widthfold_onnx.errors import CheckFailedError, UsageError
from widthfold_onnx.options import Provider, RuntimeOptions
from widthfold_onnx.runtime.environment import Device
from widthfold_onnx.runtime.kernels import copy_speed, multiply_speed
from widthfold_onnx.runtime.provider_traits import Level, traits_of
from widthfold_onnx.runtime.session import open_session
from widthfold_onnx.runtime.settings import Setting

TOLERANCE = {"float32": 1e-5, "float16": 5e-3}
"""Largest difference / largest magnitude: float32 without TF32, and float16 against float32."""

COPIED, PRODUCT = 512 * MIB, 4096
"""Bytes that are read and written, and extent of the matrices that are multiplied."""


def is_gpu(provider: Provider) -> bool:
    """True if models run on a GPU of NVIDIA."""
    return traits_of(provider).device == "nvidia"


def check_conv(options: RuntimeOptions) -> dict[str, float]:
    """Compare one Conv of a provider with the CPU, in both types.

    Returns:
        The largest difference / the largest magnitude, by element type.

    Raises:
        UnverifiedError: the provider cannot be used; the message names the missing part.
        CheckFailedError: the provider computes something else.
    """
    errors = {}
    with tempfile.TemporaryDirectory() as folder:
        for dtype, tolerance in TOLERANCE.items():
            layer = Layer((3, 8), (3, 3), 1, dtype, (2, 32, 64))
            path = Path(folder) / "conv.onnx"
            onnx.save(layer.model(has_neighbour=False), path)
            x = np.random.default_rng(0).standard_normal(layer.shapes[0]).astype(dtype)
            # Float16 by tensor cores, as it is timed: without TF32 CUDA would not use them.
            session = open_session(path, options, tf32=dtype == "float16")
            computed = session.run({"x": x})["y"].astype(np.float64)
            cpu = RuntimeOptions(provider=Provider.CPU)
            whole = Layer((3, 8), (3, 3), 1, "float32", (2, 32, 64)).model(has_neighbour=False)
            weight = onnx.numpy_helper.to_array(onnx.load(path).graph.initializer[0])
            (stored,) = whole.graph.initializer
            stored.CopyFrom(onnx.numpy_helper.from_array(weight.astype(np.float32), stored.name))
            onnx.save(whole, path)
            reference = open_session(path, cpu, Level.DISABLED)
            expected = reference.run({"x": x.astype(np.float32)})["y"]
            errors[dtype] = float(np.abs(computed - expected).max() / np.abs(expected).max())
            if not errors[dtype] <= tolerance:  # nor if it is no number
                raise CheckFailedError(
                    f"a {dtype} Conv on {options.provider} differs by {errors[dtype]:.1e} of its "
                    f"largest value from the CPU; {tolerance:.0e} is allowed, so nothing is "
                    "measured"
                )
    return errors


def name_of(options: RuntimeOptions, given: str) -> str:
    """Return the name of the GPU, or the given one if NVML does not tell it.

    Raises:
        UsageError: nobody tells it.
    """
    facts = Device(options).facts()
    if not (facts.name or given):
        raise UsageError(f"no name of the GPU, so name a folder by --out: {facts.missing}")
    return facts.name or given


def ceilings(options: RuntimeOptions) -> dict[str, float]:
    """Measure bytes and operations per second, by name; float32 is multiplied in TF32."""
    setting = Setting(Level.ALL, options)
    return {
        "bytes of a copy": copy_speed(setting, COPIED),
        "operations in float16": multiply_speed(setting, "float16", extent=PRODUCT),
        "operations in float32": multiply_speed(setting, "float", extent=PRODUCT),
    }
