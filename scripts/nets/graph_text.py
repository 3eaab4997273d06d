"""Write the graph of a net as ONNX text, a node at a time, for `make_models.build`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from nets.sources import Source


class Net:
    """A graph in the making: every method adds nodes and returns the name of their result.

    Values that `weight` declares are filled by `make_models.build`.
    """

    def __init__(self, shows: str, **inputs: tuple[int, ...]) -> None:
        self.shows = shows
        self._inputs = ", ".join(_typed(name, shape) for name, shape in inputs.items())
        self._declared: list[str] = []
        self._nodes: list[str] = []

    def node(self, op: str, *inputs: str, results: int = 1, **attributes: Any) -> str:
        """Add a node; the names of several results are joined by a comma."""
        name = f"{op.lower()}_{len(self._nodes)}"
        outputs = ", ".join([name, *(f"{name}_{i}" for i in range(1, results))])
        settings = ", ".join(f"{key} = {json.dumps(v)}" for key, v in attributes.items())
        called = f"{op} <{settings}>" if settings else op
        self._nodes.append(f"[{name}] {outputs} = {called} ({', '.join(inputs)})")
        return outputs

    def weight(self, *shape: int, dtype: str = "float") -> str:
        name = f"weight_{len(self._declared)}"
        self._declared.append(_typed(name, shape, dtype))
        return name

    def constant(self, values: float | Sequence[float], *shape: int, dtype: str = "float") -> str:
        elements = values if isinstance(values, Sequence) else [values]
        name = f"constant_{len(self._declared)}"
        self._declared.append(
            f"{_typed(name, shape, dtype)} = {{{', '.join(map(repr, elements))}}}"
        )
        return name

    def conv(self, x: str, shape: tuple[int, ...], **attributes: Any) -> str:
        """Add a Conv with bias; it keeps the extents unless `pads` are given."""
        kernel = shape[2:]
        dilations = attributes.get("dilations", [1] * len(kernel))
        reach = [(taps - 1) * step for taps, step in zip(kernel, dilations, strict=True)]
        attributes.setdefault("pads", [*(n // 2 for n in reach), *(n - n // 2 for n in reach)])
        return self.node("Conv", x, self.weight(*shape), self.weight(shape[0]), **attributes)

    def deconv(self, x: str, shape: tuple[int, ...], stride: int, **attributes: Any) -> str:
        """Add a ConvTranspose with bias, of one stride along all axes."""
        weights = self.weight(*shape), self.weight(shape[1])
        strides = [stride] * len(shape[2:])
        return self.node("ConvTranspose", x, *weights, strides=strides, **attributes)

    def prelu(self, x: str, channels: int) -> str:
        """Add a PRelu of one slope per channel of an image: small ones, none is 0."""
        slopes = [0.26 + number / 200 for number in spread(channels)]
        return self.node("PRelu", x, self.constant(slopes, channels, 1, 1))

    def dense(self, x: str, shape: tuple[int, int]) -> str:
        """Add a product of matrices and its bias."""
        return self.node("Gemm", x, self.weight(*shape), self.weight(shape[1]))

    def done(self, result: str, *shape: int) -> Source:
        """The source of the whole graph, of one output."""
        interface = f"({self._inputs}) => ({_typed(result, shape)})"
        nodes = "\n".join(self._nodes)
        return Source(self.shows, f"{interface} <{', '.join(self._declared)}> {{\n{nodes}\n}}")


def spread(count: int) -> list[int]:
    """Whole numbers between -50 and 50, for what must not be near normal."""
    return [(37 * i + 11) % 101 - 50 for i in range(count)]


def _typed(name: str, shape: Sequence[int], dtype: str = "float") -> str:
    return f"{dtype}[{','.join(map(str, shape))}] {name}" if shape else f"{dtype} {name}"
