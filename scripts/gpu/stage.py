"""Load and time models: provider, options, time that is left."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from benchmark.one_process import Pair, paired
from onnx import helper

from gpu.graphs import serialized
from gpu.results import Results, us
from widthfold_onnx.errors import CheckFailedError, UnverifiedError
from widthfold_onnx.options import Provider, RuntimeOptions
from widthfold_onnx.runtime.clock import clock_of
from widthfold_onnx.runtime.session import Bound, Placed, Session, open_session

MIB = 1 << 20
_POOL = 1 << 22


@dataclass(frozen=True)
class Scale:
    """Sizes and times of a run.

    Attributes:
        layer_bytes: of input and output of a layer of the paper's grid together.
        copy_bytes: of the tensor that shows the bandwidth.
        cached_bytes: of the tensor that shows the bandwidth of the last cache.
        product: extent of the matrices that show the peak.
        trial_seconds: for timing one form.
        model_seconds: for the search over one whole model.
    """

    layer_bytes: int
    copy_bytes: int
    cached_bytes: int
    product: int
    trial_seconds: float
    model_seconds: float


FULL = Scale(
    layer_bytes=512 * MIB,
    copy_bytes=512 * MIB,
    cached_bytes=8 * MIB,
    product=8192,
    trial_seconds=0.25,
    model_seconds=10.0,
)
"""Layers exceed the last cache of any GPU several times: 50 MB on an H100, 60 MB on an H200."""

QUICK = Scale(
    layer_bytes=MIB // 4,
    copy_bytes=MIB,
    cached_bytes=MIB // 8,
    product=128,
    trial_seconds=0.01,
    model_seconds=0.01,
)
"""To see that everything runs; the figures say nothing."""

LEAST_RUNS, MOST_RUNS = 5, 1000
SLOW = 2.0
"""Seconds after which fewer runs than usual must do."""


@dataclass(frozen=True)
class Stage:
    """The provider, the results and the time that all parts share.

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
    def seconds_left(self) -> float:
        """Seconds until this part must be over."""
        return self.ends - time.perf_counter()

    def options(self, *, last: bool = False, **chosen: str) -> dict[str, str]:
        """Return options of CUDA; another provider gets none."""
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
            provider: None for the provider of the stage.

        Raises:
            UnverifiedError: the provider does not take it.
        """
        optimized, used = self.folder / "optimized.onnx", provider or self.provider
        # The runtime refuses to write a graph that TensorRT compiled (onnxruntime#5840).
        shown = used is not Provider.TENSORRT
        runtime_options = RuntimeOptions(provider=used, provider_options=options)
        session = open_session(
            path, runtime_options, tf32=True, optimized=optimized if shown else None
        )
        return Opened(session, (transposes(optimized), transposes(path)) if shown else None)

    @contextlib.contextmanager
    def guarded(self, part: str, **fields: Any) -> Iterator[None]:
        """Turn an error of the runtime into a row that says why; the rest goes on.

        Raises:
            CheckFailedError: nothing would run any more, as after an illegal access on the device.
        """
        try:
            yield
        except UnverifiedError as error:
            self.results.add(part, **fields, error=str(error))
            x = np.ones(1, np.float32)
            nodes, ports = [helper.make_node("Neg", ["x"], ["y"])], ("float32", [1])
            model = serialized(nodes, [("x", *ports)], [("y", *ports)], {})
            try:
                self.open(model, self.options()).on({"x": x})()
            except UnverifiedError as lost:
                raise CheckFailedError(f"the device is lost: {lost}") from error

    def pair(self, original: Bound, other: Bound, copy: Bound) -> Pair:
        """Time two runs against each other, with a copy of the first one as control."""
        return paired(
            lambda _: original(),
            lambda _: other(),
            lambda _: copy(),
            budget=self.scale.trial_seconds,
            clock=clock_of(RuntimeOptions(provider=self.provider)),
        )

    def seconds(self, run: Bound) -> npt.NDArray[np.float64]:
        """Return the seconds of single runs, after some to warm up."""
        clock = clock_of(RuntimeOptions(provider=self.provider))
        start = time.perf_counter()
        times: list[int] = []
        while True:
            before = clock()
            run()
            times.append(max(clock() - before, 1))
            elapsed = time.perf_counter() - start
            enough = len(times) >= LEAST_RUNS or elapsed > SLOW
            if (enough and elapsed > self.scale.trial_seconds / 4) or len(times) == MOST_RUNS:
                return np.array(times[len(times) // 4 :]) * 1e-9


@dataclass(frozen=True)
class Opened:
    """A session, and the number of Transposes that the runtime left in its model.

    Attributes:
        session: the session.
        transposes: in the runtime's own graph, and in the model; None where the runtime does not
            show its graph.
    """

    session: Session
    transposes: tuple[int, int] | None

    def on(self, feeds: Mapping[str, npt.NDArray[Any] | Placed]) -> Bound:
        """Bind a run to these inputs."""
        run = self.session.bound(feeds)
        assert isinstance(run, Bound)
        return run


def transposes(model: Path) -> int:
    """Count the Transposes of a model; each in the graph that the runtime made is a copy."""
    proto = onnx.load(model, load_external_data=False)
    return sum(node.op_type == "Transpose" for node in proto.graph.node)


def noise(shape: Sequence[int], dtype: str) -> npt.NDArray[Any]:
    """Return normal numbers; after 4 Mi the same ones come again, as making them takes long."""
    return _pool(math.prod(shape), dtype).reshape(shape)


@lru_cache(maxsize=2)
def _pool(count: int, dtype: str) -> npt.NDArray[Any]:
    """Make them once for an input and a weight, which the next layer uses again."""
    pool = np.random.default_rng(0).standard_normal(min(_POOL, count), np.float32)
    return np.resize(pool.astype(dtype), count)


def ratio(pairing: Pair) -> dict[str, Any]:
    """Return a pairing as fields of a row; times are microseconds."""
    base, other, copy = pairing.samples
    return {
        "us": round(float(np.median(other)) * 1e6, 3),
        "base_us": round(float(np.median(base)) * 1e6, 3),
        "ratio": round(pairing.ratio, 4),
        "low": round(pairing.low, 4),
        "high": round(pairing.high, 4),
        "control": round(pairing.control, 4),
        "verdict": pairing.verdict,
        "rounds": pairing.samples.shape[1],
        "samples_us": {"base": us(base), "form": us(other), "copy": us(copy)},
    }
