"""Where everything runs: provider, options, time, and how two models are timed."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from gpu.results import Results, us
from widthfold_onnx.arrays import Array
from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.options import Provider
from widthfold_onnx.runtime.binding import Bound, Placed
from widthfold_onnx.runtime.clock import Pairing, clock_of, paired
from widthfold_onnx.runtime.session import Level, Session, open_session

MIB = 1 << 20
_POOL = 1 << 22


@dataclass(frozen=True)
class Scale:
    """How large and how long things are."""

    layer_bytes: int
    copy_bytes: int
    cached_bytes: int
    product: int
    rows_bytes: int
    trial_seconds: tuple[float, float]
    model_seconds: float
    models: int | None
    layers: int | None


FULL = Scale(
    layer_bytes=512 * MIB,
    copy_bytes=512 * MIB,
    cached_bytes=8 * MIB,
    product=8192,
    rows_bytes=256 * MIB,
    trial_seconds=(0.08, 0.6),
    model_seconds=10.0,
    models=None,
    layers=None,
)
"""Layers exceed the last cache of any GPU several times: 50 MB on an H100, 60 MB on an H200."""

QUICK = Scale(
    layer_bytes=MIB // 4,
    copy_bytes=MIB,
    cached_bytes=MIB // 8,
    product=128,
    rows_bytes=MIB // 4,
    trial_seconds=(0.01, 0.02),
    model_seconds=1.0,
    models=1,
    layers=1,
)
"""To see that everything runs; the figures say nothing."""


@dataclass(frozen=True)
class Stage:
    """What all parts share.

    Attributes:
        provider: where models run.
        folder: for models on their way into the runtime.
        results: where rows go.
        scale: sizes and times.
        ends: of `time.perf_counter`, when this part must be over.
    """

    provider: Provider
    folder: Path
    results: Results
    scale: Scale
    ends: float

    @property
    def left(self) -> float:
        """Seconds."""
        return self.ends - time.perf_counter()

    def until(self, seconds: float) -> Stage:
        """The same for so many seconds, but no longer than this one."""
        return replace(self, ends=min(self.ends, time.perf_counter() + seconds))

    def options(self, *, last: bool = False, **chosen: str) -> dict[str, str]:
        """Options of CUDA; another provider gets none."""
        if self.provider is not Provider.CUDA:
            return {}
        return {"prefer_nhwc": str(int(last)), **chosen}

    def open(
        self, model: bytes, options: Mapping[str, str], provider: Provider | None = None
    ) -> Opened:
        """Load a serialized model; see `load`."""
        path = self.folder / "model.onnx"
        path.write_bytes(model)
        return self.load(path, options, provider)

    def load(
        self, path: Path, options: Mapping[str, str], provider: Provider | None = None
    ) -> Opened:
        """Load a model.

        Args:
            path: the model.
            options: of the provider.
            provider: another one than that of the stage.

        Raises:
            UnverifiedError: the provider does not take it.
        """
        made, used = self.folder / "optimized.onnx", provider or self.provider
        # The runtime refuses to write a graph that TensorRT compiled (onnxruntime#5840).
        shown = used is not Provider.TENSORRT
        session = open_session(
            path,
            used,
            Level.ALL,
            tf32=True,
            provider_options=options,
            optimized=made if shown else None,
        )
        return Opened(session, (transposes(made), transposes(path)) if shown else None)

    @contextlib.contextmanager
    def guarded(self, part: str, **fields: Any) -> Iterator[None]:
        """What does not run becomes a row that says why, and the rest goes on."""
        try:
            yield
        except UnverifiedError as error:
            self.results.add(part, **fields, error=str(error))

    def pair(self, one: Bound, other: Bound, copy: Bound, seconds: float) -> Pairing:
        """Time two runs against each other, with a copy of the first one as control."""
        return paired(
            lambda _: one(),
            lambda _: other(),
            lambda _: copy(),
            budget=seconds,
            clock=clock_of(self.provider, 1),
        )

    def seconds(self, run: Bound, budget: float) -> npt.NDArray[np.float64]:
        """Seconds of single runs, after some to warm up."""
        clock = clock_of(self.provider, 1)
        start = time.perf_counter()
        times: list[int] = []
        while len(times) < 5 or (time.perf_counter() - start < budget and len(times) < 1000):
            before = clock()
            run()
            times.append(max(clock() - before, 1))
        return np.array(times[len(times) // 4 :]) * 1e-9


@dataclass(frozen=True)
class Opened:
    """A session, and how many Transposes of its model the runtime left.

    Attributes:
        session: the session.
        transposes: in the runtime's own graph, and in the model; None where the runtime does not
            show its graph.
    """

    session: Session
    transposes: tuple[int, int] | None

    def on(self, feeds: Mapping[str, Array | Placed]) -> Bound:
        """A run on these inputs."""
        run = self.session.bound(feeds)
        assert isinstance(run, Bound)
        return run


def transposes(model: Path) -> int:
    """How many a model holds; each one in the graph that the runtime made is a copy."""
    proto = onnx.load(model, load_external_data=False)
    return sum(node.op_type == "Transpose" for node in proto.graph.node)


def noise(shape: tuple[int, ...] | list[int], dtype: str) -> Array:
    """Normal numbers; every 4 Mi of them the same ones come again, as making them takes long."""
    return _pool(math.prod(shape), dtype).reshape(shape)


@lru_cache(maxsize=2)
def _pool(count: int, dtype: str) -> Array:
    """Kept for the next layer: an input and a weight."""
    pool = np.random.default_rng(0).standard_normal(min(_POOL, count), np.float32)
    return np.resize(pool.astype(dtype), count)


def ratio(pairing: Pairing) -> dict[str, Any]:
    """A pairing as fields of a row; times are microseconds."""
    base, other, copy = pairing.samples.T
    return {
        "us": round(float(np.median(other)) * 1e6, 3),
        "base_us": round(float(np.median(base)) * 1e6, 3),
        "ratio": round(pairing.ratio, 4),
        "low": round(pairing.low, 4),
        "high": round(pairing.high, 4),
        "control": round(pairing.control, 4),
        "verdict": pairing.verdict,
        "rounds": len(pairing.samples),
        "samples_us": {"base": us(base), "form": us(other), "copy": us(copy)},
    }
