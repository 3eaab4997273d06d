"""The site of the documentation: it builds without a warning, and fits the screens of readers."""

from __future__ import annotations

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import widthfold_onnx
from tests.repository.browser import needs_browser, sticking_out
from tests.shared import ROOT


class Page(HTMLParser):
    """The ids of a page, and the files that a browser loads for it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.ids.add(attributes.get("id") or "")
        self.loaded.append(
            attributes.get("src") or (tag == "link" and attributes.get("href")) or ""
        )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="the extra docs builds the site")
    folder = tmp_path_factory.mktemp("site")
    command = (sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder)
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (folder / "404.html").unlink()  # names its parts as a server does
    return folder


def test_it_holds_every_page_and_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = {path.relative_to(site).with_suffix(".md").as_posix() for path in site.rglob("*.html")}
    sources = [*ROOT.glob("[!R]*.md"), *ROOT.glob("docs/*.md")]
    assert {"index.md", *(path.relative_to(ROOT).as_posix() for path in sources)} <= pages
    for path in site.rglob("*.html"):
        assert not [name for name in Page(path.read_text()).loaded if "//" in name], path


def test_the_reference_holds_every_public_name(site: Path) -> None:
    ids = Page((site / "docs/api.html").read_text()).ids
    names = {f"widthfold_onnx.{name}" for name in widthfold_onnx.__all__}
    assert names <= ids


@needs_browser
def test_no_page_is_wider_than_a_phone_or_a_desktop(site: Path, tmp_path: Path) -> None:
    assert sticking_out(sorted(site.rglob("*.html")), [390, 1280], "html", tmp_path) == []
