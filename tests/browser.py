"""A headless browser that opens a page, and fails where the page complains."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium to open the page in")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--enable-logging=stderr", "--v=0"),
)


def browse(page: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    profile = page.with_name("profile")
    done = subprocess.run(
        [BROWSER or "", *FLAGS, f"--user-data-dir={profile}", *flags, page.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    shutil.rmtree(profile, ignore_errors=True)
    assert "CONSOLE" not in done.stderr, done.stderr
    assert "Content Security Policy" not in done.stderr, done.stderr
    return done
