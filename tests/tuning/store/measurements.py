"""Keys and measurements to keep."""

from __future__ import annotations

from widthfold_onnx.tuning.measurement import Measurement
from widthfold_onnx.tuning.store import Key

TAKEN = "2026-03-01T12:00:00+00:00"


def key(subject: object = "model:0", **changes: str) -> Key:
    names = {"candidate": "as-is", "setting": "{}", "machine": "m", **changes}
    return Key(subject=str(subject), **names)


def measured(**changes: object) -> Measurement:
    fields = {"ratio": 1.5, "low": 1.4, "high": 1.7, "seconds": 1e-3, "pairs": 40, "reason": ""}
    return Measurement(**{"status": "ok", **fields, "timestamp": TAKEN, **changes})


LOST = measured(status="lost", ratio=0.0, low=0.0, high=0.0, seconds=0.0, reason="out of memory")
