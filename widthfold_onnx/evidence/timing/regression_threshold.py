"""Judges whether the rewritten model is as fast as the caller requires."""

from __future__ import annotations

from typing import Literal

from widthfold_onnx.results import Timing
from widthfold_onnx.runtime.clock import judge, noise

Outcome = Literal["pass", "fail", "unverified"]


def gate(timing: Timing, least: float) -> tuple[Outcome, str]:
    """Judge a speed-up against `least`, as the verdict on speed judges it against 1.

    It fails where the whole interval lies below `least` by more than noise explains, which is 2 %
    or twice the A/A control (`runtime.clock.noise`), and passes where its lower end is no further
    below than that. So at 1.0 "slower" fails, "faster" and "no difference" pass; what lies between
    is unverified. Several threads without free cores give no result.

    Args:
        timing: the measured times.
        least: the smallest accepted original / rewritten, above 0.

    Returns:
        The outcome, and why it is no pass, with the figures; "" for a pass.
    """
    free = timing.threads == 1 or not timing.crowded
    low, high = timing.low / least, timing.high / least
    judged = judge(low, high, timing.control)
    figures = (
        f"original / rewritten = {timing.speedup:.3f} [{timing.low:.3f}, {timing.high:.3f}], "
        f"A/A control {1 + timing.control:.3f}, {timing.pairs} pairs"
    )
    if free and judged == "slower":
        return "fail", f"slower than --fail-under {least:g} allows: {figures}"
    if free and low * noise(timing.control) >= 1:
        return "pass", ""
    remedy = "more seconds (--time-budget) would tell" if free else timing.note
    return "unverified", f"not known to reach --fail-under {least:g}: {figures}; {remedy}"
