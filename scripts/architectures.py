#!/usr/bin/env python3
"""Write published nets of few channels, with made-up weights: `architectures.py [--out DIR] [NET]`.

Each function names its source and takes the input that the paper or its users run. Every
normalization after a convolution is part of that convolution, as exporters leave it. The weights
depend on nothing but the names of net and weight (`make_models`): every run writes the same bytes.
The folder, build/architectures unless given, is not committed: it takes 60 MB.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from make_models import write
from nets.graph_text import Net, spread
from nets.mobile import face_detector, pruned, segmentation, separable, unet
from nets.sequence import deepfilter_encoder, tcn, wavenet
from nets.sources import Source

OUT = Path(__file__).resolve().parents[1] / "build" / "architectures"


def eegnet(batch: int) -> Source:
    net = Net(
        f"EEGNet-8,2 (Lawhern et al., 2018): {batch} x 64 electrodes x 128 samples.",
        trials=(batch, 1, 64, 128),
    )
    x = net.conv("trials", (8, 1, 1, 64))
    x = net.conv(x, (16, 1, 64, 1), group=8, pads=[0, 0, 0, 0])
    x = net.node("AveragePool", net.node("Elu", x), kernel_shape=[1, 4], strides=[1, 4])
    x = net.node("Conv", x, net.weight(16, 1, 1, 16), group=16, pads=[0, 7, 0, 8])
    x = net.node("Elu", net.conv(x, (16, 16, 1, 1)))
    x = net.node("AveragePool", x, kernel_shape=[1, 8], strides=[1, 8])
    x = net.dense(net.node("Flatten", x), (64, 2))
    return net.done(net.node("Softmax", x), batch, 2)


def deep_eeg() -> Source:
    net = Net(
        "Deep ConvNet (Schirrmeister et al., 2017): 22 electrodes x 1,125 samples.",
        trial=(1, 1, 22, 1125),
    )
    x = net.conv("trial", (25, 1, 1, 10), pads=[0] * 4)
    x = net.conv(x, (25, 25, 22, 1), pads=[0] * 4)
    for before, after in pairwise((25, 50, 100, 200)):
        x = net.node("MaxPool", net.node("Elu", x), kernel_shape=[1, 3], strides=[1, 3])
        x = net.conv(x, (after, before, 1, 10), pads=[0] * 4)
    x = net.node("MaxPool", net.node("Elu", x), kernel_shape=[1, 3], strides=[1, 3])
    x = net.node("Flatten", net.conv(x, (4, 200, 1, 9), pads=[0] * 4))
    return net.done(net.node("Softmax", x), 1, 4)


def fsrcnn(features: int, shrunk: int, mappings: int, size: int) -> Source:
    net = Net(
        f"FSRCNN({features},{shrunk},{mappings}) (Dong et al., 2016): luma of {size}x{size}, x2.",
        luma=(1, 1, size, size),
    )
    x = net.prelu(net.conv("luma", (features, 1, 5, 5)), features)
    x = net.prelu(net.conv(x, (shrunk, features, 1, 1)), shrunk)
    for _ in range(mappings):
        x = net.prelu(net.conv(x, (shrunk, shrunk, 3, 3)), shrunk)
    x = net.prelu(net.conv(x, (features, shrunk, 1, 1)), features)
    x = net.deconv(x, (features, 1, 9, 9), 2, pads=[4] * 4, output_padding=[1, 1])
    return net.done(x, 1, 1, 2 * size, 2 * size)


def espcn() -> Source:
    net = Net("ESPCN (Shi et al., 2016): luma of 224x224, x3.", luma=(1, 1, 224, 224))
    x = net.node("Tanh", net.conv("luma", (64, 1, 5, 5)))
    x = net.node("Tanh", net.conv(x, (32, 64, 3, 3)))
    x = net.node("DepthToSpace", net.conv(x, (9, 32, 3, 3)), blocksize=3, mode="CRD")
    return net.done(x, 1, 1, 672, 672)


def ds_cnn() -> Source:
    net = Net(
        "DS-CNN-S (Zhang et al., 2017) in 8-bit integers: 49 frames of 10 cepstral coefficients.",
        cepstrum=(1, 1, 49, 10),
    )
    scale = 0.03  # of all tensors

    def through(x: str, zero: int = 0) -> str:
        by = net.constant(scale), net.constant(zero, dtype="uint8")
        return net.node("DequantizeLinear", net.node("QuantizeLinear", x, *by), *by)

    def layer(op: str, x: str, shape: tuple[int, ...], **attributes: Any) -> str:
        fine = np.float32(1 / (74 * math.sqrt(math.prod(shape[1:]))))  # uniform: 74 is one sigma
        zero = net.constant(0, dtype="int8")
        weights = net.weight(*shape, dtype="int8"), net.constant(float(fine)), zero
        sums = net.constant(float(fine * np.float32(scale))), net.constant(0, dtype="int32")
        bias = net.constant([20 * n for n in spread(shape[0])], shape[0], dtype="int32"), *sums
        read = (net.node("DequantizeLinear", *each) for each in (weights, bias))
        return net.node(op, x, *read, **attributes)

    x = layer("Conv", through("cepstrum", 128), (64, 1, 10, 4), strides=[2, 2], pads=[4, 1, 5, 1])
    for _ in range(4):
        x = through(net.node("Relu", x))
        x = layer("Conv", x, (64, 1, 3, 3), group=64, pads=[1] * 4)
        x = layer("Conv", through(net.node("Relu", x)), (64, 64, 1, 1))
    x = net.node("AveragePool", through(net.node("Relu", x)), kernel_shape=[25, 5])
    x = layer("Gemm", net.node("Flatten", through(x)), (12, 64), transB=1)
    return net.done(net.node("Softmax", through(x, 128)), 1, 12)


def conformer_block() -> Source:
    net = Net(
        "The convolution module of a Conformer (Gulati et al., 2020): 1,000 frames of 256.",
        frames=(1, 1000, 256),
    )
    normal = net.constant([1.0] * 256, 256), net.weight(256)
    x = net.node("LayerNormalization", "frames", *normal)
    x = net.conv(net.node("Transpose", x, perm=[0, 2, 1]), (512, 256, 1))
    value, gate = net.node("Split", x, results=2, axis=1).split(", ")
    x = net.node("Mul", value, net.node("Sigmoid", gate))
    x = net.conv(x, (256, 1, 31), group=256)
    x = net.conv(net.node("Mul", x, net.node("Sigmoid", x)), (256, 256, 1))
    x = net.node("Add", net.node("Transpose", x, perm=[0, 2, 1]), "frames")
    return net.done(x, 1, 1000, 256)


def conformer_depthwise() -> Source:
    net = Net(
        "The depthwise layer of a Conformer (Gulati et al., 2020) alone: 1,000 frames.",
        frames=(1, 256, 1000),
    )
    return net.done(net.conv("frames", (256, 1, 31), group=256), 1, 256, 1000)


def istft() -> Source:
    net = Net(
        "The inverse transform of htdemucs (Rouard et al., 2023): 2,049 bins, hop 1,024.",
        spectrum=(2, 2049, 170),
    )
    x = net.node("ConvTranspose", "spectrum", net.weight(2049, 1, 4096), strides=[1024])
    return net.done(x, 2, 1, 169 * 1024 + 4096)


def stft() -> Source:
    net = Net(
        "The transform of nnAudio (Cheuk et al., 2020): 1,025 bins, hop 512, 1.5 s at 44.1 kHz.",
        audio=(1, 1, 65536),
    )
    x = net.node("Conv", "audio", net.weight(2050, 1, 2048), strides=[512])
    return net.done(x, 1, 2050, 125)


def hifigan_stage() -> Source:
    net = Net(
        "The last stage of HiFi-GAN V2 (Kong et al., 2020): a second at 22.05 kHz.",
        features=(1, 16, 11008),
    )
    x = net.node("LeakyRelu", "features", alpha=0.1)
    x = net.deconv(x, (16, 8, 4), 2, pads=[1, 1])
    sums = []
    for taps in (3, 7, 11):
        y = x
        for dilation in (1, 3, 5):
            z = net.node("LeakyRelu", y, alpha=0.1)
            z = net.conv(z, (8, 8, taps), dilations=[dilation])
            z = net.conv(net.node("LeakyRelu", z, alpha=0.1), (8, 8, taps))
            y = net.node("Add", z, y)
        sums.append(y)
    x = net.node("Add", net.node("Add", *sums[:2]), sums[2])
    x = net.node("LeakyRelu", net.node("Div", x, net.constant(3.0)), alpha=0.01)
    return net.done(net.node("Tanh", net.conv(x, (1, 8, 7))), 1, 1, 22016)


def vocoder_head() -> Source:
    net = Net(
        "The last layer of HiFi-GAN V1 (Kong et al., 2020) alone: 3 s at 22.05 kHz.",
        features=(1, 32, 65536),
    )
    return net.done(net.conv("features", (1, 32, 7)), 1, 1, 65536)


def unet_3d() -> Source:
    net = Net(
        "3D U-Net (Cicek et al., 2016), from 8 features in three levels: a volume of 32x64x64.",
        volume=(1, 1, 32, 64, 64),
    )

    def pair(x: str, *channels: int) -> str:
        for before, after in pairwise(channels):
            x = net.node("Relu", net.conv(x, (after, before, 3, 3, 3)))
        return x

    def half(x: str) -> str:
        return net.node("MaxPool", x, kernel_shape=[2] * 3, strides=[2] * 3)

    def joined(x: str, skipped: str, features: int) -> str:
        up = net.deconv(x, (2 * features, features, 2, 2, 2), 2)
        x = net.node("Concat", up, skipped, axis=1)
        return pair(x, 2 * features, features, features)

    fine = pair("volume", 1, 8, 8)
    middle = pair(half(fine), 8, 16, 16)
    x = joined(pair(half(middle), 16, 32, 32), middle, 16)
    return net.done(net.conv(joined(x, fine, 8), (2, 8, 1, 1, 1)), 1, 2, 32, 64, 64)


def nerf_mlp() -> Source:
    net = Net(
        "One perceptron of KiloNeRF (Reiser et al., 2021): 65,536 points, encoded, and directions.",
        points=(65536, 63),
        directions=(65536, 27),
    )
    x = net.node("Relu", net.dense("points", (63, 32)))
    x = net.node("Relu", net.dense(x, (32, 32)))
    density = net.node("Relu", net.dense(x, (32, 1)))
    x = net.node("Concat", net.dense(x, (32, 32)), "directions", axis=1)
    x = net.node("Relu", net.dense(x, (59, 32)))
    colour = net.node("Sigmoid", net.dense(x, (32, 3)))
    return net.done(net.node("Concat", colour, density, axis=1), 65536, 4)


def ecg_resnet() -> Source:
    net = Net(
        "The residual net of Kachuee et al. (2018): 32 heartbeats of 187 samples.",
        heartbeats=(32, 1, 187),
    )
    x = net.conv("heartbeats", (32, 1, 5))
    for _ in range(5):
        y = net.node("Relu", net.conv(x, (32, 32, 5)))
        x = net.node("Relu", net.node("Add", net.conv(y, (32, 32, 5)), x))
        x = net.node("MaxPool", x, kernel_shape=[5], strides=[2])
    x = net.node("Relu", net.dense(net.node("Flatten", x), (64, 32)))
    x = net.node("Relu", net.dense(x, (32, 32)))
    return net.done(net.node("Softmax", net.dense(x, (32, 5))), 32, 5)


def denoiser() -> Source:
    net = Net(
        "DnCNN (Zhang et al., 2017) of 16 features instead of 64: an image of 256x256.",
        noisy=(1, 1, 256, 256),
    )
    x = net.node("Relu", net.conv("noisy", (16, 1, 3, 3)))
    for _ in range(15):
        x = net.node("Relu", net.conv(x, (16, 16, 3, 3)))
    return net.done(net.node("Sub", "noisy", net.conv(x, (1, 16, 3, 3))), 1, 1, 256, 256)


NETS: dict[str, Callable[[], Source]] = {
    "eegnet": lambda: eegnet(1),
    "eegnet_batch32": lambda: eegnet(32),
    "fsrcnn": lambda: fsrcnn(56, 12, 4, 128),
    "fsrcnn_s": lambda: fsrcnn(32, 5, 1, 256),
    "espcn": espcn,
    "ds_cnn": ds_cnn,
    "conformer_block": conformer_block,
    "conformer_depthwise": conformer_depthwise,
    "istft": istft,
    "stft": stft,
    "hifigan_stage": hifigan_stage,
    "vocoder_head": vocoder_head,
    "unet_3d": unet_3d,
    "nerf_mlp": nerf_mlp,
    "ecg_resnet": ecg_resnet,
    "denoiser": denoiser,
    "pruned": lambda: pruned("Relu"),
    "pruned_prelu": lambda: pruned("PRelu"),
    "separable": separable,
    "face_detector": face_detector,
    "unet": unet,
    "segmentation": segmentation,
    "deep_eeg": deep_eeg,
    "tcn_25": lambda: tcn(25),
    "tcn_32": lambda: tcn(32),
    "wavenet": wavenet,
    "deepfilter_encoder": lambda: deepfilter_encoder(streaming=False),
    "deepfilter_streaming": lambda: deepfilter_encoder(streaming=True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=OUT, help="folder to write into")
    parser.add_argument("nets", nargs="*", metavar="NET", help=f"of {', '.join(NETS)}")
    arguments = parser.parse_args()
    unknown = set(arguments.nets) - set(NETS)
    if unknown:
        parser.error(f"no such net: {', '.join(sorted(unknown))}")
    write({name: NETS[name]() for name in arguments.nets or NETS}, arguments.out)


if __name__ == "__main__":
    main()
