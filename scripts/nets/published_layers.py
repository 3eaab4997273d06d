"""List layers whose times others published, one entry a layer.

Published figures are context: they are of other devices and libraries, and each source times its
layer in its own way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from nets.layers import Layer

EINNET = "EinNet (OSDI 2023), logs in its artifact zhengly123/OSDI23-EinNet-AE"
SPIDER = (
    "SPIDER (arXiv 2506.22035): the mean of its stencils, by its abstract, which names neither "
    "device nor grid; this grid is our choice"
)
GROUPED = "microsoft/onnxruntime#27874; its size is in MLAS's benchmark MobileClip"
MOBILE = "google-ai-edge/litert-torch#1211, at the size of onnxruntime#27874: its own is not known"
DEPTHWISE = "pytorch/pytorch#75747; its size is in BlinkDL/RWKV-CUDA, depthwise_conv1d/run.py"


@dataclass(frozen=True)
class Published:
    """A layer and what others published of it.

    Attributes:
        layer: the layer as a GPU runs it, in the element type of the source.
        figures: the published times, or a gain where there are no times.
        device: where they were measured.
        source: where they stand, and where the size comes from.
        cpu: N and the spatial extents for one thread of a CPU; None: the extents of `layer`.
    """

    layer: Layer
    figures: str
    device: str
    source: str
    cpu: tuple[int, ...] | None = None

    @property
    def on_cpu(self) -> Layer:
        """The layer in float32, of the size that one thread of a CPU runs in reasonable time."""
        return replace(self.layer, dtype="float32", extents=self.cpu or self.layer.extents)


CONTEXT = "Published times are context, not rivals: of other devices, each timed in its own way."


def _stencil(size: int) -> Published:
    name, kernel = f"spider_{size}x{size}", (size, size)
    layer = Layer((1, 1), kernel, 1, "float16", (1, 10240, 10240), name=name)
    figures = "6.2x by a kernel for sparse tensor cores over cuDNN"
    return Published(layer, figures, "a GPU, float16", SPIDER, (1, 2048, 2048))


def _grouped(groups: int, figures: str, device: str, source: str) -> Published:
    extents, name = (1, 64, 64), f"mobileclip_{groups}_groups"
    layer = Layer((64, 128), (7, 7), 2, "float32", extents, group=groups, name=name)
    return Published(layer, figures, device, source)


PUBLISHED = (
    Published(
        Layer((32, 1), (5, 5), 1, "float32", (16, 224, 224), name="einnet_conv5x5"),
        "0.954 ms cuDNN (its FFT), 0.599 EinNet (its Conv alone), 0.168 Ansor",
        "A100, float32",
        EINNET,
    ),
    Published(
        Layer((512, 512), (3, 3), 1, "float32", (1, 7, 7), name="einnet_conv3x3"),
        "0.126 ms cuDNN, 0.049 EinNet",
        "A100, float32",
        EINNET,
    ),
    Published(
        Layer(
            (256, 448),
            (4, 4),
            2,
            "float32",
            (16, 2, 2),
            (1, 1),
            transposed=True,
            name="einnet_deconv4x4",
        ),
        "0.247 ms cuDNN (its algorithm 0), 0.048 EinNet",
        "A100, float32",
        f"{EINNET}; its commands pass stride 1 and pad 2, and its cuDNN program 448 -> 256 "
        "channels, so these may be times of another layer",
    ),
    *(_stencil(size) for size in (3, 5, 7)),
    _grouped(
        64,
        "3.15 ms before, 1.39 with a kernel of its own; 459 ms by LiteRT, 0.269 by ONNX Runtime",
        "AVX-512, 1 thread, float32; Hexagon v79",
        f"{GROUPED}; {MOBILE}",
    ),
    _grouped(32, "0.69 ms by LiteRT", "Hexagon v79", MOBILE),
    Published(
        Layer((768, 768), (768,), 1, "float32", (32, 768), (767, 0), 768, name="rwkv_depthwise"),
        "14 ms PyTorch, 0.8 a naive kernel",
        "RTX 3090, float32",
        DEPTHWISE,
        (1, 768),
    ),
)


def layers(device: str) -> list[Layer]:
    """The layers, in the element type of their source and, on a GPU, in the other one, too."""
    if device == "cpu":
        return [entry.on_cpu for entry in PUBLISHED]
    own = [entry.layer for entry in PUBLISHED]
    others = {"float32": "float16", "float16": "float32"}
    return [*own, *(replace(layer, dtype=others[layer.dtype]) for layer in own)]


def context(device: str) -> str:
    """Return a table of the published times, as Markdown."""
    head = ("layer", "operator", "input here", "published", "device", "source")
    rows: list[tuple[str, ...]] = [head, ("---",) * len(head)]
    for entry in PUBLISHED:
        layer = entry.on_cpu if device == "cpu" else entry.layer
        shape = "x".join(map(str, layer.shapes[0]))
        rows.append((layer.name, layer.geometry, shape, entry.figures, entry.device, entry.source))
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(["## Published times", "", *lines, "", CONTEXT, ""])
