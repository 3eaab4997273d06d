"""Ask nvidia-smi about the first GPU while it is measured: clock, temperature, throttling."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterable
from typing import IO, Any, Self

FIELDS = (
    "name",
    "driver_version",
    "clocks.sm",
    "temperature.gpu",
    "clocks_throttle_reasons.active",
)


def name() -> str:
    """Return the device's name; "" where nvidia-smi does not answer."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            _query("name"), capture_output=True, check=True, text=True, timeout=30
        )
        return done.stdout.partition("\n")[0].strip()
    return ""


class Watch:
    """An observer that looks once a second, from the beginning of the block to its end.

    nvidia-smi writes into a pipe, which breaks when this process dies, however it does: then
    nvidia-smi ends as well. A pipe holds more than a thousand lines.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._begun = b""

    def __enter__(self) -> Self:
        with contextlib.suppress(OSError):
            self._process = subprocess.Popen(
                [*_query(*FIELDS), "-l", "1"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            os.set_blocking(self._pipe.fileno(), False)
        return self

    def __exit__(self, *raised: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._pipe.close()

    def take(self) -> dict[str, Any]:
        """Return the observations since the last call; empty without any."""
        if self._process is None:
            return {}
        *lines, self._begun = (self._begun + (self._pipe.read() or b"")).split(b"\n")
        texts = [line.decode(errors="replace") for line in lines]
        seen = [_fields(line) for line in texts if line.count(",") == len(FIELDS) - 1]
        if not seen:
            return {}
        return {
            "device": seen[0]["name"],
            "driver": seen[0]["driver_version"],
            "sm_mhz": _numbers(entry["clocks.sm"] for entry in seen),
            "celsius": _numbers(entry["temperature.gpu"] for entry in seen),
            "throttled": sorted({entry["clocks_throttle_reasons.active"] for entry in seen}),
        }

    @property
    def _pipe(self) -> IO[bytes]:
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout


def _query(*fields: str) -> list[str]:
    query = f"--query-gpu={','.join(fields)}"
    return ["nvidia-smi", "-i", "0", query, "--format=csv,noheader,nounits"]


def _numbers(values: Iterable[str]) -> list[int]:
    """Return the values that are numbers; a virtual device may answer [N/A]."""
    return [int(value) for value in values if value.isdigit()]


def _fields(line: str) -> dict[str, str]:
    return dict(zip(FIELDS, (value.strip() for value in line.split(",")), strict=True))
