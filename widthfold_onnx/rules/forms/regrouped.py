"""List the other groups and channels that a Conv is tried with (`algebra.channels`).

Rule: replaces a Conv with a Conv of other groups, or with Pad - Conv of more channels - Slice.
Requires: a LinearSite of floats; more groups only where the weight is zero between them.
Rewrites: neighbouring groups become one, down to a dense Conv; a Conv with a block-diagonal weight
    becomes groups; channels of a dense Conv are padded to the multiples that kernels ask for.
"""

from __future__ import annotations

from collections.abc import Iterator

from widthfold_onnx.algebra.channels import Grouping
from widthfold_onnx.rules.match.conv_site import ConvSite

ALIGNMENTS = (4, 8, 16)
"""Multiples that kernels ask for: 4 channels of ONNX Runtime's blocked kernels on the CPU
(nchwc_transformer.cc), 8 of a tensor core in half precision (NVIDIA convolution guide), 16 floats
of AVX-512."""


def groupings(site: ConvSite) -> Iterator[Grouping]:
    """Yield every grouping that a site is tried with, each once, without its own."""
    if site.quantization is not None:
        return  # added channels would need scales, and the zero point of each channel
    inputs, outputs = site.channels
    counts = range(1, site.groups + 1)
    for count in counts:
        merged, split = site.group % count == 0, count % site.group == site.groups % count == 0
        if count != site.group and (merged or split):
            yield Grouping(inputs, outputs, count)
    padded = [
        pair
        for multiple in ALIGNMENTS
        for pair in (
            (_up(inputs, multiple), outputs),
            (inputs, _up(outputs, multiple)),
            (_up(inputs, multiple), _up(outputs, multiple)),
        )
    ]
    for pair in dict.fromkeys(padded):
        if pair != site.channels:
            yield Grouping(*pair)


def words(before: Grouping, after: Grouping) -> list[str]:
    """Return the names of the changes that a regrouping makes, none if it changes nothing."""
    changes = []
    if before.group != after.group:
        changes.append("dense" if after.group == 1 else "grouped")
    if (before.inputs, before.outputs) != (after.inputs, after.outputs):
        changes.append("padded")
    return changes


def _up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
