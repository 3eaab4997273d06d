"""Nets of sequences, with causal Convs or grouped products of matrices, for `architectures`."""

from __future__ import annotations

from nets.graph_text import Net
from nets.sources import Source


def trimmed(net: Net, x: str, begin: int, end: int, axis: int = 2) -> str:
    """Cut elements off the begin and the end of an axis."""
    number = [net.constant([n], 1, dtype="int64") for n in (begin, -end if end else 1 << 40, axis)]
    return net.node("Slice", x, *number)


def tcn(channels: int) -> Source:
    net = Net(
        f"TCN of {channels} channels (Bai et al., 2018), with its Chomp: 784 pixels in a row.",
        pixels=(1, 1, 784),
    )

    def causal(x: str, before: int, dilation: int) -> str:
        shape, pads = (channels, before, 7), [6 * dilation] * 2
        x = net.conv(x, shape, dilations=[dilation], pads=pads)
        return net.node("Relu", trimmed(net, x, 0, 6 * dilation))

    x, before = "pixels", 1
    for level in range(8):
        y = causal(causal(x, before, 2**level), channels, 2**level)
        x = net.conv(x, (channels, before, 1)) if before < channels else x
        x, before = net.node("Relu", net.node("Add", y, x)), channels
    last = net.node("Flatten", trimmed(net, x, -1, 0))
    return net.done(net.dense(last, (channels, 10)), 1, 10)


def wavenet() -> Source:
    net = Net(
        "WaveNet of an amplifier (Damskagg et al., 2019), with its trims: 4,096 samples.",
        audio=(1, 1, 4096),
    )
    channels = 16
    x, skips = net.conv("audio", (channels, 1, 1)), []
    for layer in range(10):
        reach = 2 * 2**layer
        shape = (2 * channels, channels, 3)
        y = net.conv(x, shape, dilations=[2**layer], pads=[reach, reach])
        y = trimmed(net, y, 0, reach)
        value, gate = net.node("Split", y, results=2, axis=1).split(", ")
        y = net.node("Mul", net.node("Tanh", value), net.node("Sigmoid", gate))
        skips.append(net.conv(y, (channels, channels, 1)))
        x = net.node("Add", net.conv(y, (channels, channels, 1)), x)
    x = net.node("Concat", *skips, axis=1)
    return net.done(net.conv(x, (1, 10 * channels, 1)), 1, 1, 4096)


def deepfilter_encoder(*, streaming: bool) -> Source:
    """Build the encoder, or the last frame of its part in front of the GRU, for streaming."""
    part = " in front of its GRU, for streaming" if streaming else ""
    net = Net(
        f"The encoder of DeepFilterNet3 (Schroeter et al., 2023){part}: 20 frames.",
        bands=(1, 1, 20, 32),
        spectrum=(1, 2, 20, 96),
    )

    def shaped(x: str, *shape: int) -> str:
        return net.node("Reshape", x, net.constant(shape, len(shape), dtype="int64"))

    def separable(x: str, stride: int) -> str:
        strides, pads = [1, stride], [0, 1, 0, 1]
        x = net.node("Conv", x, net.weight(64, 1, 1, 3), group=64, strides=strides, pads=pads)
        return net.node("Relu", net.conv(x, (64, 64, 1, 1)))

    def flat(x: str, features: int) -> str:
        return shaped(net.node("Transpose", x, perm=[0, 2, 3, 1]), 1, 20, features)

    def grouped(x: str, groups: int, before: int, after: int) -> str:
        weight = net.weight(groups, before, after)
        x = shaped(x, 1, 20, groups, before)
        x = net.node("Einsum", x, weight, equation="btgi,gih->btgh")
        return net.node("Relu", shaped(x, 1, 20, groups * after))

    x = net.node("Relu", net.conv("bands", (64, 1, 3, 3), pads=[2, 1, 0, 1]))
    for stride in (2, 2, 1):
        x = separable(x, stride)
    y = net.node("Conv", "spectrum", net.weight(64, 1, 3, 3), group=2, pads=[2, 1, 0, 1])
    y = separable(net.node("Relu", net.conv(y, (64, 64, 1, 1))), 2)
    x = net.node("Add", flat(x, 512), grouped(flat(y, 3072), 32, 96, 16))
    x = grouped(x, 16, 32, 16)
    if streaming:
        return net.done(trimmed(net, x, -1, 0, axis=1), 1, 1, 256)
    x = net.node("Transpose", x, perm=[1, 0, 2])
    weights = net.weight(1, 768, 256), net.weight(1, 768, 256), net.weight(1, 1536)
    x = net.node("GRU", x, *weights, results=2, hidden_size=256, linear_before_reset=1)
    x = net.node("Squeeze", x.split(", ")[0], net.constant([1], 1, dtype="int64"))
    x = net.node("Transpose", x, perm=[1, 0, 2])
    return net.done(grouped(x, 16, 16, 32), 1, 20, 512)
