"""Load the devices that times can be predicted for: one TOML file each.

The numbers come from data sheets and sources; `[source]` names the origin of each.
Numbers of CPUs are per core.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Annotated

import msgspec
from msgspec import Meta

from widthfold_onnx.errors import UsageError
from widthfold_onnx.options import Provider
from widthfold_onnx.runtime.provider_traits import traits_of
from widthfold_onnx.system import processor
from widthfold_onnx.text import quoted

SUFFIX = ".toml"

Count = Annotated[int, Meta(gt=0)]
Positive = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(gt=0, le=1)]


class Target(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device as the cost model sees it.

    Attributes:
        name: name of the file.
        provider: where ONNX Runtime runs models on it.
        device: a word in the identity of every such machine; "" if any machine may be one.
        lanes: output channels that a tile computes, used or not.
        depth: products of one output that a tile adds up, used or not.
        align: the blocked kernels pad the channels of their tensors to a multiple of this.
        direct_below: an input of fewer channels is read as it is, not copied into blocks first.
        blocked_rank: spatial axes for which there are blocked kernels; 0: any; None: there are no
            such kernels. All else is computed as a matrix product of columns (im2col).
        rate: peak multiply-adds / s by element type of ONNX.
        efficiency: share of the peak that the kernels reach, above 0 to 1.
        memory_bandwidth: bytes / s.
        cache_bandwidth: bytes / s.
        cache: bytes; an operator that touches less runs at the bandwidth of the cache.
        transpose: share of the bandwidth that a Transpose reaches, above 0 to 1.
        scatter: extra seconds per element of a Transpose that moves short runs.
        column_passes: times that each number of a matrix of columns is written or read.
        launch: seconds per operator.
        source: origin of each of these numbers.

    Raises:
        ValueError: a number has no source.
    """

    name: str
    provider: Provider
    device: str
    lanes: Count
    depth: Count
    align: Count
    direct_below: Annotated[int, Meta(ge=0)]
    blocked_rank: Annotated[int, Meta(ge=0)] | None
    rate: Annotated[dict[str, Positive], Meta(min_length=1)]
    efficiency: Share
    memory_bandwidth: Positive
    cache_bandwidth: Positive
    cache: Count
    transpose: Share
    scatter: Annotated[float, Meta(ge=0)]
    column_passes: Positive
    launch: Positive
    source: dict[str, str]

    def __post_init__(self) -> None:
        numbers = {*self.__struct_fields__} - {"name", "provider", "device", "source"}
        if set(self.source) != numbers or not all(self.source.values()):
            raise ValueError("a number has no source, or a source no number")

    def without_blocked_kernels(self) -> Target:
        """Return the target at a level of the runtime that does not use its blocked kernels."""
        return msgspec.structs.replace(self, blocked_rank=None) if self.blocked_rank else self


def names() -> list[str]:
    """Return the names of all targets."""
    files = resources.files(__name__).iterdir()
    return sorted(file.name.removesuffix(SUFFIX) for file in files if file.name.endswith(SUFFIX))


@cache
def load_target(name: str) -> Target:
    """Return a target by its name.

    Raises:
        UsageError: no target has that name.
    """
    if name not in names():
        raise UsageError(f"no target is called {quoted(name)}; there are {', '.join(names())}")
    text = (resources.files(__name__) / f"{name}{SUFFIX}").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), Target)


def default_target(provider: Provider) -> str:
    """Return the name of the target that is used unless the caller names one.

    Args:
        provider: where models run. For GPUs the result is the smallest known one, as the names
            of devices are not looked up; AUTO, and what no target is known of, count as the CPU.
    """
    if name := traits_of(provider).target:
        return name
    return "cpu-avx512" if processor().has_avx512 else "cpu-avx2"
