"""Nets of images whose channel counts fill no vector, for `architectures`."""

from __future__ import annotations

from itertools import pairwise

from nets.graph_text import Net
from nets.sources import Source

INVERTED = (
    # channels between, channels out, stride
    *((26, 13, 1), (52, 26, 2), (77, 26, 1), (103, 52, 2), (231, 52, 1), (231, 77, 2)),
    *((231, 77, 1), (308, 77, 1), (308, 103, 1), (308, 103, 1)),
)
SEPARABLE = (
    *((58, 2), (58, 1), (58, 1), (58, 1), (116, 2), (116, 1), (116, 1), (116, 1), (116, 1)),
    *((116, 1), (116, 1), (116, 1), (232, 2), (232, 1), (232, 1), (232, 1)),
)
FACES = (
    *((24, 1), (28, 1), (32, 2), (36, 1), (42, 1), (48, 2), (56, 1), (64, 1), (72, 1), (80, 1)),
    (88, 1),
)
"""Channels and stride of the blocks of the face detector, up to the first head."""


def depthwise(net: Net, x: str, channels: int, stride: int) -> str:
    """Add a 3x3 Conv of single channels."""
    pads = [0, 0, 1, 1] if stride == 2 else [1] * 4
    strides = [stride, stride]
    return net.conv(x, (channels, 1, 3, 3), group=channels, pads=pads, strides=strides)


def pruned(function: str) -> Source:
    net = Net(
        f"MobileNetV2 (Sandler et al., 2018) with {function}, pruned by half, as structured "
        "pruning leaves channel counts: a photo of 160x160.",
        photo=(1, 3, 160, 160),
    )

    def activated(x: str, channels: int) -> str:
        return net.prelu(x, channels) if function == "PRelu" else net.node(function, x)

    x = activated(net.conv("photo", (13, 3, 3, 3), strides=[2, 2], pads=[0, 0, 1, 1]), 13)
    before = 13
    for between, after, stride in INVERTED:
        y = activated(net.conv(x, (between, before, 1, 1)), between)
        y = activated(depthwise(net, y, between, stride), between)
        y = net.conv(y, (after, between, 1, 1))
        x = net.node("Add", y, x) if stride == 1 and before == after else y
        before = after
    x = activated(net.conv(x, (308, before, 1, 1)), 308)
    x = net.dense(net.node("Flatten", net.node("GlobalAveragePool", x)), (308, 100))
    return net.done(x, 1, 100)


def separable() -> Source:
    net = Net(
        "Depthwise-separable layers (Howard et al., 2017) as wide as ShuffleNetV2 (Ma et al., "
        "2018): a photo of 224x224.",
        photo=(1, 3, 224, 224),
    )
    x = net.node("Relu", net.conv("photo", (24, 3, 3, 3), strides=[2, 2], pads=[0, 0, 1, 1]))
    before = 24
    for after, stride in SEPARABLE:
        x = net.node("Relu", depthwise(net, x, before, stride))
        x = net.node("Relu", net.conv(x, (after, before, 1, 1)))
        before = after
    x = net.dense(net.node("Flatten", net.node("GlobalAveragePool", x)), (before, 100))
    return net.done(x, 1, 100)


def face_detector() -> Source:
    net = Net(
        "BlazeFace (Bazarevsky et al., 2019), whose shortcuts get channels of zeros: 128x128.",
        image=(1, 3, 128, 128),
    )

    def block(x: str, before: int, after: int, stride: int) -> str:
        y = net.conv(depthwise(net, x, before, stride), (after, before, 1, 1))
        if stride == 2:
            x = net.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
        if after > before:
            ends = [0, 0, 0, 0, 0, after - before, 0, 0]
            x = net.node("Pad", x, net.constant(ends, 8, dtype="int64"), net.constant(0.0))
        return net.node("Relu", net.node("Add", y, x))

    def head(x: str, channels: int, anchors: int, numbers: int) -> str:
        y = net.conv(x, (anchors * numbers, channels, 1, 1))
        y = net.node("Transpose", y, perm=[0, 2, 3, 1])
        return net.node("Reshape", y, net.constant([1, -1, numbers], 3, dtype="int64"))

    x = net.conv("image", (24, 3, 5, 5), strides=[2, 2], pads=[1, 1, 2, 2])
    x, before = net.node("Relu", x), 24
    for after, stride in FACES:
        x, before = block(x, before, after, stride), after
    fine, x = x, block(x, 88, 96, 2)
    for _ in range(4):
        x = block(x, 96, 96, 1)
    heads = [
        net.node("Concat", head(fine, 88, 2, numbers), head(x, 96, 6, numbers), axis=1)
        for numbers in (1, 16)
    ]
    return net.done(net.node("Concat", *heads, axis=2), 1, 896, 17)


def unet() -> Source:
    net = Net(
        "U-Net (Ronneberger et al., 2015) from 12 features in four levels: an image of 128x128.",
        image=(1, 1, 128, 128),
    )

    def pair(x: str, *channels: int) -> str:
        for before, after in pairwise(channels):
            x = net.node("Relu", net.conv(x, (after, before, 3, 3)))
        return x

    def level(x: str, before: int, features: int) -> str:
        x = pair(x, before, features, features)
        if features == 96:
            return x
        inner = net.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
        inner = level(inner, features, 2 * features)
        up = net.deconv(inner, (2 * features, features, 2, 2), 2)
        return pair(net.node("Concat", up, x, axis=1), 2 * features, features, features)

    return net.done(net.conv(level("image", 1, 12), (2, 12, 1, 1)), 1, 2, 128, 128)


def segmentation() -> Source:
    net = Net(
        "Portrait segmentation with squeeze-and-excite (Hu et al., 2018) in blocks of MobileNetV3 "
        "(Howard et al., 2019): a photo of 128x128.",
        photo=(1, 3, 128, 128),
    )

    def scaled(x: str, channels: int) -> str:
        y = net.node("Relu", net.conv(net.node("GlobalAveragePool", x), (8, channels, 1, 1)))
        return net.node("Mul", x, net.node("Sigmoid", net.conv(y, (channels, 8, 1, 1))))

    def block(x: str, before: int, between: int, after: int, stride: int) -> str:
        y = net.node("Relu", net.conv(x, (between, before, 1, 1)))
        y = scaled(net.node("Relu", depthwise(net, y, between, stride)), between)
        y = net.conv(y, (after, between, 1, 1))
        return net.node("Add", y, x) if stride == 1 and before == after else y

    x = net.conv("photo", (16, 3, 3, 3), strides=[2, 2], pads=[0, 0, 1, 1])
    fine = block(net.node("HardSigmoid", x), 16, 16, 16, 1)
    middle = block(block(fine, 16, 72, 24, 2), 24, 88, 24, 1)
    x = block(block(middle, 24, 96, 40, 2), 40, 120, 40, 1)
    for skipped, before, after in ((middle, 40, 24), (fine, 24, 16)):
        up = net.deconv(x, (before, after, 2, 2), 2)
        x = net.node("Add", scaled(net.node("Relu", up), after), skipped)
    return net.done(net.node("Sigmoid", net.deconv(x, (16, 1, 2, 2), 2)), 1, 1, 128, 128)
