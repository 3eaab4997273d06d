"""The pages name files, links and headings that exist."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from functools import partial
from pathlib import Path

import onnx
import pytest

import widthfold_onnx as wf
from tests.shared import ROOT
from tests.small_models import TWO_LAYERS, build, save
from widthfold_onnx.model import loader
from widthfold_onnx.model.proto import functions, tensors
from widthfold_onnx.runtime.inputs import stored
from widthfold_onnx.tuning.effort import SPENDING

PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
FOLDERS = [ROOT, ROOT / "widthfold_onnx"]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        assert other.exists(), target
        assert not anchor or anchor in anchors(other), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_exist(page: Path) -> None:
    for name in re.findall(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|toml|md|json))`", page.read_text()):
        if name.isupper() or "NAME" in name or name.startswith(("..", "benchmarks/gpu/<")):
            continue
        assert any((folder / name).exists() for folder in FOLDERS), name


def test_the_changelog_is_that_of_the_version() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert headings[0] == "Unreleased"
    assert re.fullmatch(rf"{re.escape(version)} - \d{{4}}-\d\d-\d\d", headings[1])


def test_the_limits_of_untrusted_models_are_those_of_the_code() -> None:
    page = (ROOT / "SECURITY.md").read_text()
    limits = dict(re.findall(r"^\| (.+) \| ([\d,; ]*\d)(?: each| GiB)? \|$", page, re.MULTILINE))
    assert limits == {
        "nodes; tensors": f"{loader.MAX_NODES:,}",
        "subgraphs in one another": f"{loader.MAX_DEPTH}",
        "fields; messages of any kind": f"{loader.MAX_FIELDS:,}; {loader.MAX_MESSAGES:,}",
        "nodes once local functions are inlined": f"{functions.MAX_INLINED_NODES:,}",
        "dims of a tensor": f"{tensors.MAX_RANK}",
        "bytes of one set of stored inputs": f"{stored.MAX_INPUT_BYTES >> 30}",
    }
    assert loader.MAX_TENSORS == loader.MAX_NODES


@pytest.mark.parametrize("page", ["README.md", "docs/api.md", "docs/plans.md"])
def test_the_calls_that_a_page_shows_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("model.onnx", "retrained.onnx"):
        save(build(TWO_LAYERS.replace("[second]", "[head]")), tmp_path / name)
    monkeypatch.chdir(tmp_path)
    for effort, spending in SPENDING.items():
        times = dict.fromkeys(("race", "probe", "trial", "lifting", "ablation", "final"), 0.1)
        monkeypatch.setitem(SPENDING, effort, replace(spending, forms=2, **times))
    monkeypatch.setattr(wf, "verify", partial(wf.verify, time_budget=0.1))
    proto = onnx.load("model.onnx")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(block, {"proto": proto, "model": proto})
