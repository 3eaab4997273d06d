"""Counts the seconds that measuring takes, without those in which processes start."""

from __future__ import annotations

import time


class Budget:
    """Seconds for measuring; they pass only while something runs.

    Args:
        seconds: all of them.

    Attributes:
        total: the seconds at the beginning.
    """

    def __init__(self, seconds: float) -> None:
        self.total = seconds
        self._spent = 0.0
        self._since: float | None = None

    @property
    def left(self) -> float:
        """Seconds that are left; below 0 if more were spent."""
        running = 0.0 if self._since is None else time.monotonic() - self._since
        return self.total - self._spent - running

    def start(self) -> None:
        """Let the seconds pass, unless they do already."""
        if self._since is None:
            self._since = time.monotonic()

    def stop(self) -> None:
        """Let no more seconds pass."""
        self._spent, self._since = self.total - self.left, None
