"""Write the layers of `gpu.published` as models for a CPU: `bench.py --suite published_layers`.

A model is the layer alone, without bias, so a fold also pays for the copies at both ends of the
graph. Its weights are made up (`make_models`).
"""

from __future__ import annotations

from pathlib import Path

from gpu.published import PUBLISHED, Published
from gpu.tables import published_times
from make_models import write

from nets.graph_text import Net
from nets.sources import Source

OUT = Path(__file__).resolve().parents[2] / "build" / "published_layers"


def source(entry: Published) -> Source:
    """The model of one layer."""
    layer = entry.on_cpu
    x, y = layer.shapes
    net = Net(f"{layer.geometry}: a layer whose time others published.", x=x)
    node = net.node(
        "ConvTranspose" if layer.transposed else "Conv",
        "x",
        net.weight(*layer.weight_shape),
        group=layer.group,
        pads=layer.onnx_pads,
        strides=[layer.stride] * len(layer.kernel),
    )
    return net.done(node, *y)


def models() -> list[Path]:
    """The models of all layers, written again."""
    return write({entry.layer.name: source(entry) for entry in PUBLISHED}, OUT)


def context() -> str:
    """Return published times of the layers, as Markdown."""
    return published_times([entry.on_cpu for entry in PUBLISHED]).markdown()
