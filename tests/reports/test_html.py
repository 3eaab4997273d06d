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
    axes,
    failing,
    folded,
    hostile,
    output,
    passing,
    pattern,
)
from tests.repository.browser import browse, needs_browser, sticking_out
from widthfold_onnx.algebra.axis import ConvAxis
from widthfold_onnx.reports import html
from widthfold_onnx.results import Proof, VerifyReport

REPORTS = {"passing": passing(), "failing": failing(), "hostile": hostile()}


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {name: html.page(report) for name, report in REPORTS.items()}


def drawings(report: VerifyReport) -> int:
    """Two of the timing, two for each folded axis."""
    return 2 + 2 * sum(len(s.axes) for s in report.folds)


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
    assert page.tags["svg"] == drawings(passing()) == text.count('role="img"')
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
    assert "8 neighbouring positions of the input become channels" in after
    assert "--threads 1" in after


def test_a_result_without_time_proof_or_folds_is_a_page_too() -> None:
    bare = replace(passing(), timing=None, proof=None, folds=[], outputs=[], reasons=["crashed"])
    page = Page(html.page(replace(bare, verdict="unverified")))
    assert page.tags["svg"] == 0
    assert "crashed" in page.text


@pytest.mark.parametrize(
    ("tiles", "message", "pictures"),
    [
        ((4, 1), "the input is read as it is and 4 of the output come back from channels", 1),
        ((1, 4), "4 neighbouring positions of the input become channels and the output is", 2),
    ],
)
def test_a_side_that_is_not_folded_is_said_to_be_as_it_is(
    tiles: tuple[int, int], message: str, pictures: int
) -> None:
    """There is no picture of an input that nothing happens to."""
    stride = max(1, tiles[1])
    axis = pattern("width", ConvAxis(length=32, kernel=5, stride=stride, pad_begin=2), *tiles)
    report = replace(passing(), folds=[folded("one", [axis])], outputs=[], timing=None)
    page = Page(html.page(report))
    assert message in page.text
    assert page.tags["svg"] == pictures


def test_a_kernel_whose_taps_are_not_recorded_is_not_drawn() -> None:
    axis = replace(axes()[-1], taps=[])
    report = replace(passing(), folds=[folded("one", [axis])], outputs=[], timing=None)
    page = Page(html.page(report))
    assert "the kernel of 39 becomes one of 3 at stride 1." in page.text
    assert page.tags["svg"] == 1


def test_equal_folds_are_drawn_once_and_what_is_left_out_is_counted() -> None:
    wide = pattern("width", ConvAxis(length=64, kernel=3, pad_begin=1, pad_end=1), 8, 8)
    alike = [folded(f"same_{i}", [wide]) for i in range(30)]
    others = [replace(folded(f"other_{i}", axes()[3:4]), form=f"form {i}") for i in range(30)]
    report = replace(passing(), folds=[*alike, *others], outputs=[], timing=None)
    text = html.page(report)
    assert text.count("<svg") == 2 * html.MAX_FOLDS
    assert "same_0 and 29 more" in text
    assert f"{30 - (html.MAX_FOLDS - 1)} more folded nodes are not drawn" in text


def test_a_huge_result_stays_small() -> None:
    name = "<&\u202e>" * 60
    kinds = axes()[-1:]
    big = [replace(folded(f"{name}{i}", kinds), form=f"{name}{i}") for i in range(1000)]
    outputs = [output(f"{name}{i}", "all", 1.0, passed=False) for i in range(1000)]
    text = html.page(replace(passing(), folds=big, outputs=outputs, reasons=[name * 9] * 1000))
    assert len(text.encode()) < 3_000_000
    assert "more outputs are in the JSON report" in text
    assert "more folded nodes are not drawn" in text


@pytest.mark.parametrize("proof", [EQUAL, DIFFERENT, NOT_PROVABLE, SKIPPED])
def test_the_proof_is_said_and_only_an_equal_one_explained(proof: Proof) -> None:
    report = replace(passing(), folds=[], outputs=[], timing=None)
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
    assert dom.tags["svg"] == drawings(REPORTS[name])


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
