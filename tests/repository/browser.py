"""A headless browser that opens a page, and fails where the page complains."""

from __future__ import annotations

import html
import json
import re
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


MEASURE = """<!doctype html><body><script>
const [pages, widths, selector] = %s;
const found = [];
let opened = 0;
for (const page of pages) for (const width of widths) {
  const frame = document.createElement("iframe");
  frame.width = width;
  frame.src = page;
  frame.onload = () => {
    for (const part of frame.contentDocument.querySelectorAll(selector))
      if (part.scrollWidth > part.clientWidth)
        found.push(`${page} at ${width}: ${part.scrollWidth} in ${part.clientWidth}`);
    document.body.dataset.found = JSON.stringify([++opened, found]);
  };
  document.body.append(frame);
}
</script>"""


def sticking_out(pages: list[Path], widths: list[int], selector: str, folder: Path) -> list[str]:
    """The parts of pages, in windows of these widths, that something is too wide for."""
    frames = folder / "frames.html"
    uris = [page.as_uri() for page in pages]
    frames.write_text(MEASURE % json.dumps([uris, widths, selector]))
    dom = browse(frames, "--allow-file-access-from-files", "--dump-dom").stdout
    match = re.search('data-found="([^"]*)"', dom)
    assert match is not None, dom
    opened, offenders = json.loads(html.unescape(match[1]))
    assert opened == len(pages) * len(widths)
    return list(offenders)
