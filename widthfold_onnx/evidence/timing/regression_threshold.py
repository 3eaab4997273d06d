"""Judges whether the rewritten model is as fast as the caller requires."""

from __future__ import annotations

from widthfold_onnx.results import Timing, Verdict
from widthfold_onnx.runtime.intervals import judge, noise


def gate(timing: Timing, least: float, what: str = "original / rewritten") -> tuple[Verdict, str]:
    """Judge a speed-up against `least`, as the verdict on speed judges it against 1.

    It fails where the whole interval lies below `least` by more than noise explains, which is 2 %
    or twice the A/A control (`runtime.intervals.noise`), and passes where its lower end is no
    further below than that. So at 1.0 "slower" fails, "faster" and "no difference" pass; what lies
    between is unverified. Several threads without free cores give no result.

    Args:
        timing: the measured times.
        least: the smallest accepted speed-up, above 0.
        what: the speed-up is, for the message.

    Returns:
        The outcome, and why it is no pass, with the figures; "" for a pass.
    """
    low, high = timing.low / least, timing.high / least
    judged = judge(low, high, timing.control)
    figures = (
        f"{what} = {timing.speedup:.3f} [{timing.low:.3f}, {timing.high:.3f}], "
        f"A/A control {1 + timing.control:.3f}, {timing.pairs} pairs"
    )
    if not timing.hindered and judged == "slower":
        return "fail", f"slower than --fail-under {least:g} allows: {figures}"
    if not timing.hindered and low * noise(timing.control) >= 1:
        return "pass", ""
    remedy = timing.note if timing.hindered else "more seconds (--time-budget) would tell"
    return "unverified", f"not known to reach --fail-under {least:g}: {figures}; {remedy}"
