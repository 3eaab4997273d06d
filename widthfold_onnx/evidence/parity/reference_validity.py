"""Discards float64 references too far from the original to be explained by rounding.

onnx's reference implementation has faults of its own (the BatchNormalization of onnx 1.23.2 at
opset 9 was 41 % off behind the first Conv of a ResNet), and so has the runtime (the Sigmoid of ONNX
Runtime 1.31.1 on the CPU is 7 % off at -14 and 0 at -18).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from widthfold_onnx.evidence.parity.comparison import NOISE_FACTOR, NOISE_LIMIT, Outputs, figure
from widthfold_onnx.evidence.parity.figures import relative_error
from widthfold_onnx.evidence.parity.outputs import DEFAULT_RTOL
from widthfold_onnx.text import printable


def usable(
    truths: Sequence[Outputs],
    references: Sequence[Outputs],
    noise: Callable[[], Sequence[Mapping[str, float | None]]],
) -> tuple[list[Outputs], str]:
    """Return the truths to which the original is as near as rounding explains.

    Where truth and original disagree by more than the default tolerance and by more than some
    roundings of the inputs move the original, one of them is wrong; which one is unknown, so no
    verdict may rest on it.

    Args:
        truths: per input set, from `true_outputs`.
        references: outputs of the original, without the runtime's optimizations.
        noise: gives per input set how far one rounding of the inputs moves each output; it is
            called only where that is needed.

    Returns:
        The truths that are left, and a sentence about the others, "" if there are none.
    """
    kept: list[Outputs] = []
    dropped: dict[str, float | None] = {}
    for number, (truth, reference) in enumerate(zip(truths, references, strict=True)):
        kept.append({})
        for name, value in truth.items():
            if name not in reference or reference[name].dtype.name not in DEFAULT_RTOL:
                continue
            allowed = DEFAULT_RTOL[reference[name].dtype.name]
            distance = relative_error(value, reference[name])
            same = value.shape == reference[name].shape
            if distance is not None and distance > allowed:
                moved = noise()[number].get(name) or 0.0
                allowed = min(NOISE_FACTOR * moved, NOISE_LIMIT)
            if same and (distance is None or distance <= allowed):
                kept[-1][name] = value
            else:
                dropped[name] = max(dropped.get(name) or 0.0, distance or 0.0) or None
    if not dropped:
        return kept, ""
    names = ", ".join(printable(name) for name in dropped)
    far = figure(max((d for d in dropped.values() if d), default=None))
    return kept, (
        f"float64 reference not used for output {names}: the original is {far} away from it, "
        "more than rounding explains"
    )
