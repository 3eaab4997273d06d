"""Judge a speed-up by the least speed-up that the caller requires, or by a saved report.

With a saved report of `verify` speed-ups are compared, not times: each speed-up was measured
against the original in the same run, and a slower day slows down both models.
"""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from widthfold_onnx.errors import UsageError
from widthfold_onnx.results import (
    VERIFY_SCHEMA,
    Baseline,
    ReportPart,
    Timing,
    Verdict,
    VerifyReport,
)
from widthfold_onnx.runtime.intervals import noise, speed_verdict
from widthfold_onnx.text import quoted

MAX_SPEEDUP = 1e9
"""Largest speed-up that can have been measured; the least one is its reciprocal."""


def gate(
    timing: Timing, least: float, quotient: str = "original / rewritten"
) -> tuple[Verdict, str]:
    """Judge a speed-up against `least`, as the verdict on speed judges it against 1.

    Noise explains 2 % or twice the A/A control (`runtime.intervals.noise`). The speed-up fails if
    the whole interval lies below `least` by more than noise, and passes if its lower end does not.
    So at 1.0 "slower" fails, "faster" and "no difference" pass, and any other result is unverified.
    Several threads without free cores give no result.

    Args:
        timing: the measured times.
        least: the smallest accepted speed-up, above 0.
        quotient: the meaning of the speed-up, for the message.

    Returns:
        The verdict, and the reason with the figures if it is no pass, else "".
    """
    low, high = timing.low / least, timing.high / least
    verdict = speed_verdict(low, high, timing.control)
    figures = (
        f"{quotient} = {timing.speedup:.3f} [{timing.low:.3f}, {timing.high:.3f}], "
        f"A/A control {1 + timing.control:.3f}, {timing.pairs} pairs"
    )
    if not timing.hindered and verdict == "slower":
        return "fail", f"slower than --fail-under {least:g} allows: {figures}"
    if not timing.hindered and low * noise(timing.control) >= 1:
        return "pass", ""
    remedy = timing.note if timing.hindered else "more seconds (--time-budget) would tell"
    return "unverified", f"not known to reach --fail-under {least:g}: {figures}; {remedy}"


def with_requirement(timing: Timing, least: float | None) -> Timing:
    """Return a timing, judged against the smallest accepted speed-up where there is one."""
    if least is None:
        return timing
    verdict, _ = gate(slowest(timing), least)
    return msgspec.structs.replace(timing, fail_under=least, fail_under_verdict=verdict)


def slowest(timing: Timing) -> Timing:
    """Return a timing with the speed-up of the size at which the model gains least."""
    gains = [row.gain for row in timing.sizes if row.gain is not None]
    if not gains:
        return timing
    least = min(gains, key=lambda gain: gain.low)
    figures = {"speedup": least.ratio, "low": least.low, "high": least.high, "pairs": least.pairs}
    return msgspec.structs.replace(timing, **figures)


def read_report(path: Path) -> VerifyReport:
    """Return the report of `verify` in a JSON file.

    Raises:
        UsageError: the file holds no such report.
    """
    refusal = f"{quoted(str(path))} is no JSON report of verify"
    try:
        report = msgspec.json.decode(path.read_bytes(), type=VerifyReport)
    except (OSError, UnicodeDecodeError, RecursionError, msgspec.DecodeError) as error:
        raise UsageError(f"{refusal}: {error}") from error
    if report.schema != VERIFY_SCHEMA:
        raise UsageError(f"{refusal}: its schema is {quoted(report.schema)}, not {VERIFY_SCHEMA}")
    if report.timing is not None and not _is_plausible(report.timing):
        raise UsageError(f"{refusal}: no clock can have measured its speed-ups")
    return report


def _is_plausible(timing: Timing) -> bool:
    """Return whether a clock can have measured the figures; a file may hold any."""
    interval = 1 / MAX_SPEEDUP <= timing.low <= timing.speedup <= timing.high <= MAX_SPEEDUP
    return interval and 0 <= timing.control <= MAX_SPEEDUP


def with_baseline(
    saved: VerifyReport, now: VerifyReport, name: str, least: float | None
) -> VerifyReport:
    """Return `now` with its comparison to the saved report.

    Args:
        saved: the baseline.
        now: the report to judge.
        name: of the file of the baseline, for messages.
        least: the smallest accepted ratio of speed-ups, `now` / `saved`; None asks nothing.

    Returns:
        The report with `timing.baseline`, and the verdict by `least`; unchanged without a timing.
    """
    if now.timing is None:
        return now
    baseline, relative = _comparison(saved, now, now.timing, name)
    if least is None:
        return msgspec.structs.replace(
            now, timing=msgspec.structs.replace(now.timing, baseline=baseline)
        )
    gate_verdict: Verdict = "unverified"
    if relative is None:
        reason = f"not comparable with {name}: {'; '.join(baseline.differs)}"
    else:
        gate_verdict, reason = gate(relative, least, "now / then")
    timing = msgspec.structs.replace(
        now.timing, baseline=baseline, fail_under=least, fail_under_verdict=gate_verdict
    )
    verdict = _worse_verdict(now.verdict, gate_verdict)
    reasons = [*now.reasons, f"beside {name}, {reason}"] if reason else now.reasons
    return msgspec.structs.replace(now, timing=timing, verdict=verdict, reasons=reasons)


def _worse_verdict(first: Verdict, second: Verdict) -> Verdict:
    order: tuple[Verdict, ...] = ("pass", "unverified", "fail")
    return max(first, second, key=order.index)


def _comparison(
    saved: VerifyReport, now: VerifyReport, timing: Timing, name: str
) -> tuple[Baseline, Timing | None]:
    """Return the comparison, and a timing in which the saved speed-up takes the place of 1.

    The interval of a quotient has the root of the sum of squares of the two distances (Zou and
    Donner, Construction of confidence limits about effect measures, 2008).
    """
    differs, base = differences(saved, now), saved.timing
    if base is None or differs:
        return Baseline(report=name, differs=differs or ["it holds no timing"]), None
    middle = math.log(timing.speedup / base.speedup)
    fall = math.hypot(math.log(timing.speedup / timing.low), math.log(base.high / base.speedup))
    rise = math.hypot(math.log(timing.high / timing.speedup), math.log(base.speedup / base.low))
    ratio, low, high = math.exp(middle), math.exp(middle - fall), math.exp(middle + rise)
    control = max(timing.control, base.control)
    source = timing if timing.hindered else base
    baseline = Baseline(
        report=name,
        speedup=base.speedup,
        ratio=ratio,
        low=low,
        high=high,
        verdict="inconclusive" if source.hindered else speed_verdict(low, high, control),
    )
    figures = {"speedup": ratio, "low": low, "high": high, "control": control}
    relative = msgspec.structs.replace(timing, **figures)
    return baseline, msgspec.structs.replace(relative, crowded=source.crowded, note=source.note)


def differences(saved: VerifyReport, now: VerifyReport) -> list[str]:
    """Return the facts that two reports must share and do not share, with both values."""
    names = ("machine", "cores", "onnxruntime", "provider", "provider_options", "session_options")
    lines = _changes(saved.environment, now.environment, *names)
    lines += _changes(saved, now, "original")
    if saved.timing is not None and now.timing is not None:
        lines += _changes(saved.timing, now.timing, "threads", "clock", "shapes")
    return lines


def _changes(saved: ReportPart, now: ReportPart, *names: str) -> list[str]:
    pairs = ((name, getattr(saved, name), getattr(now, name)) for name in names)
    return [f"{name}: {old} became {new}" for name, old, new in pairs if old != new]
