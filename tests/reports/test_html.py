"""Reports as one HTML file that loads nothing from elsewhere."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace
from PIL import Image

from tests.reports.page import Page
from tests.reports.sample import (
    DIFFERENT,
    EQUAL,
    NOT_PROVABLE,
    SKIPPED,
    failing,
    hostile,
    output,
    passing,
)
from tests.repository.browser import browse, needs_browser, sticking_out
from widthfold_onnx.reports import html
from widthfold_onnx.results import Proof

REPORTS = {"passing": passing(), "failing": failing(), "hostile": hostile()}


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {name: html.page(report) for name, report in REPORTS.items()}


# ---------------------------------------------------------------- the file


def test_one_file_that_asks_for_nothing(pages: dict[str, str]) -> None:
    for text in pages.values():
        page = Page(text)
        assert len(text) < 1_000_000
        assert not {"script", "link", "iframe", "img", "object", "form"} & page.tags.keys()
        assert re.search("http-equiv=.Content-Security-Policy. content=.default-src 'none'; ", text)
        assert "@import" not in text
        assert not re.findall(r"https?://", text)


def test_pictures_are_named_and_their_ids_unique(pages: dict[str, str]) -> None:
    text = pages["passing"]
    page = Page(text)
    assert page.tags["svg"] == 2 == text.count('role="img"')
    assert len(page.ids) == len(set(page.ids))
    assert page.references == set(page.ids)


def test_hostile_names_are_text(pages: dict[str, str]) -> None:
    page = Page(pages["hostile"])
    assert page.tags.keys() == Page(pages["failing"]).tags.keys()
    assert r"\x1b[2J<script>alert(1)</script>]]>|`$x^2$`@you\u202e-->" in page.text
    assert not set("\x1b\u202e\uffff") & set(pages["hostile"])


def test_verdict_reasons_and_command_are_said(pages: dict[str, str]) -> None:
    page = Page(pages["failing"])
    before, _, after = page.text.partition("max_rel 0.007 > 1e-05 at [0,3,8,8]")
    assert "the rewritten model does not compute what the original computes" in before
    assert "contour/conv_1/Conv differs" in before
    assert "original / rewritten = 1.702" in after
    assert "--threads 1" in after


def test_a_result_without_time_or_proof_is_a_page_too() -> None:
    bare = replace(passing(), timing=None, proof=None, outputs=[], reasons=["crashed"])
    page = Page(html.page(replace(bare, verdict="unverified")))
    assert page.tags["svg"] == 0
    assert "crashed" in page.text


def test_a_huge_result_stays_small() -> None:
    name = "<&\u202e>" * 60
    outputs = [output(f"{name}{i}", "all", 1.0, passed=False) for i in range(1000)]
    text = html.page(replace(passing(), outputs=outputs, reasons=[name * 9] * 1000))
    assert len(text.encode()) < 3_000_000
    assert "more outputs are in the JSON report" in text


@pytest.mark.parametrize("proof", [EQUAL, DIFFERENT, NOT_PROVABLE, SKIPPED])
def test_the_proof_is_said_and_only_an_equal_one_explained(proof: Proof) -> None:
    report = replace(passing(), outputs=[], timing=None)
    text = Page(html.page(replace(report, proof=proof, reasons=[proof.reason]))).text
    assert f"{proof.verdict}: " in text
    assert text.count(proof.reason or "no reason") == (proof is not EQUAL)
    assert ("8388593, 8388587" in text) == (proof is EQUAL)


# ---------------------------------------------------------------- in a browser


@needs_browser
@pytest.mark.parametrize("name", ["passing", "failing", "hostile"])
def test_a_browser_shows_verdict_and_drawings(
    name: str, pages: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    path.write_text(pages[name])
    dom = Page(browse(path, "--dump-dom").stdout)
    assert "what the original computes" in dom.text
    assert dom.tags == Page(pages[name]).tags + Counter(tbody=dom.tags["tbody"])
    assert dom.tags["svg"] == 2


@needs_browser
def test_the_browser_tells_of_a_violation(tmp_path: Path, pages: dict[str, str]) -> None:
    path = tmp_path / "report.html"
    path.write_text(pages["passing"].replace("<body>", "<body><script>alert(1)</script>"))
    with pytest.raises(AssertionError, match="Content Security Policy"):
        browse(path, "--dump-dom")


@needs_browser
@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("dark", [False, True])
def test_it_is_painted_on_phones_and_in_the_dark(
    width: int, dark: bool, pages: dict[str, str], tmp_path: Path
) -> None:
    path, shot = tmp_path / "report.html", tmp_path / "shot.png"
    path.write_text(pages["passing"])
    flags = [f"--screenshot={shot}", f"--window-size={width},844"]
    browse(path, *flags, *(["--blink-settings=preferredColorScheme=0"] if dark else []))
    with Image.open(shot) as image:
        assert image.size == (width, 844)
        pixels = image.convert("RGB")
        colours, paper = pixels.getcolors(1 << 24) or [], pixels.getpixel((3, 3))
    assert paper == ((20, 23, 27) if dark else (255, 255, 255))
    assert len(colours) > 50


@needs_browser
def test_nothing_is_cut_off_on_a_desktop(pages: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "passing.html").write_text(pages["passing"])
    reports = [tmp_path / "passing.html"]
    assert sticking_out(reports, [1280], "html, .wide", tmp_path) == []
