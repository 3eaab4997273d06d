"""What nvidia-smi says of the first GPU while it is measured: clock, temperature, throttling."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

FIELDS = (
    "name",
    "driver_version",
    "clocks.sm",
    "temperature.gpu",
    "clocks_throttle_reasons.active",
)
_QUERY = [
    "nvidia-smi",
    "-i",
    "0",
    f"--query-gpu={','.join(FIELDS)}",
    "--format=csv,noheader,nounits",
]


def name() -> str:
    """The device's name; "" where nvidia-smi does not answer."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(_QUERY, capture_output=True, check=True, text=True, timeout=30)
        return _fields(done.stdout.splitlines()[0])["name"]
    return ""


class Watch:
    """Looks once a second, from the beginning of the block to its end.

    Args:
        folder: for the file into which nvidia-smi writes.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "nvidia-smi.csv"
        self._process: subprocess.Popen[bytes] | None = None
        self._taken = 0

    def __enter__(self) -> Self:
        with contextlib.suppress(OSError), self._file.open("wb") as out:
            self._process = subprocess.Popen(
                [*_QUERY, "-l", "1"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.DEVNULL,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def take(self) -> dict[str, Any]:
        """What was seen since the last call; empty where nothing was."""
        text = self._file.read_text(encoding="utf-8") if self._file.exists() else ""
        lines = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
        new, self._taken = lines[self._taken :], len(lines)
        seen = [_fields(line) for line in new if line.count(",") == len(FIELDS) - 1]
        if not seen:
            return {}
        return {
            "device": seen[0]["name"],
            "driver": seen[0]["driver_version"],
            "sm_mhz": [int(entry["clocks.sm"]) for entry in seen],
            "celsius": [int(entry["temperature.gpu"]) for entry in seen],
            "throttled": sorted({entry["clocks_throttle_reasons.active"] for entry in seen}),
        }


def _fields(line: str) -> dict[str, str]:
    return dict(zip(FIELDS, (value.strip() for value in line.split(",")), strict=True))
