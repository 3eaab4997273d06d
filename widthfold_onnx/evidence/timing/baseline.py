"""Judges a report of `verify` against a saved one: is the speed-up still what it was?

Speed-ups are compared, not times: both were measured against the original in their own runs, which
a slower day slows down as well.
"""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from widthfold_onnx.errors import UsageError
from widthfold_onnx.evidence.timing.regression_threshold import gate
from widthfold_onnx.results import Baseline, Timing, VerifyReport
from widthfold_onnx.runtime.clock import judge
from widthfold_onnx.text import quoted


def read_report(path: Path) -> VerifyReport:
    """Return the report of `verify` in a JSON file.

    Raises:
        UsageError: it is none.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=VerifyReport)
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{quoted(str(path))} is no JSON report of verify: {error}") from error


def against(saved: VerifyReport, now: VerifyReport, name: str, least: float | None) -> VerifyReport:
    """Return `now` with what it says beside the saved report.

    Args:
        saved: the baseline.
        now: the report to judge.
        name: of the file of the baseline, for messages.
        least: the smallest accepted speed-up of `now` / that of `saved`; None asks nothing.

    Raises:
        UsageError: `now` holds no timing.
    """
    if now.timing is None:
        raise UsageError("a baseline judges the timing, and there is none")
    baseline, relative = _compared(saved, now, now.timing, name)
    if least is None:
        return msgspec.structs.replace(
            now, timing=msgspec.structs.replace(now.timing, baseline=baseline)
        )
    if relative is None:
        outcome, why = "unverified", f"not comparable with {name}: {'; '.join(baseline.differs)}"
    else:
        outcome, why = gate(relative, least)
    timing = msgspec.structs.replace(
        now.timing, baseline=baseline, fail_under=least, fail_under_verdict=outcome
    )
    verdict = outcome if now.verdict == "pass" else now.verdict
    reasons = [*now.reasons, f"beside {name}, {why}"] if why else now.reasons
    return msgspec.structs.replace(now, timing=timing, verdict=verdict, reasons=reasons)


def _compared(
    saved: VerifyReport, now: VerifyReport, timing: Timing, name: str
) -> tuple[Baseline, Timing | None]:
    """Return the comparison, and a timing in which the saved speed-up takes the place of 1.

    The interval of a quotient has the root of the sum of squares of the two distances (Zou and
    Donner, Construction of confidence limits about effect measures, 2008).
    """
    differs, before = differences(saved, now), saved.timing
    if before is None or differs:
        return Baseline(report=name, differs=differs or ["it holds no timing"]), None
    middle = math.log(timing.speedup / before.speedup)
    fall = math.hypot(math.log(timing.speedup / timing.low), math.log(before.high / before.speedup))
    rise = math.hypot(math.log(timing.high / timing.speedup), math.log(before.speedup / before.low))
    ratio, low, high = math.exp(middle), math.exp(middle - fall), math.exp(middle + rise)
    control = max(timing.control, before.control)
    baseline = Baseline(
        report=name,
        speedup=before.speedup,
        ratio=ratio,
        low=low,
        high=high,
        verdict=judge(low, high, control),
    )
    relative = {"speedup": ratio, "low": low, "high": high, "control": control}
    return baseline, msgspec.structs.replace(timing, **relative)


def differences(saved: VerifyReport, now: VerifyReport) -> list[str]:
    """Return what two reports must share and do not, with both values."""
    pairs = [
        (name, getattr(saved.environment, name), getattr(now.environment, name))
        for name in (
            *("machine", "cores", "onnxruntime", "provider", "provider_options"),
            "session_options",
        )
    ]
    pairs.append(("original", saved.original, now.original))
    if saved.timing is not None and now.timing is not None:
        pairs += [
            (name, getattr(saved.timing, name), getattr(now.timing, name))
            for name in ("threads", "clock", "shapes")
        ]
    return [f"{name}: {before} became {after}" for name, before, after in pairs if before != after]
