"""Sentences must be true in every form, whatever made an output fail."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from msgspec.structs import replace

from tests.reports.sample import DIFFERENT, EQUAL, NOT_PROVABLE, SKIPPED, failing, output, passing
from widthfold_onnx.evidence.parity.original_runs import UNSTEADY_NOTE
from widthfold_onnx.evidence.parity.outputs import compare
from widthfold_onnx.options import Tolerance
from widthfold_onnx.reports import github, junit, pictures
from widthfold_onnx.reports.described.layers import region
from widthfold_onnx.reports.described.verification import (
    certificate,
    describe,
    difference,
    gpu,
    integers,
    meaning,
    verdict,
    witness,
)
from widthfold_onnx.reports.described.verification import proof as proof_line
from widthfold_onnx.results import Gpu, GpuState, IntegerRun, Proof, RegionReport, Stop


def test_an_output_that_fails_within_the_largest_distance_says_why() -> None:
    many = "the mean distance is 1e-06, allowed 1e-07"
    row = replace(output("z", "disabled", 1.2e-6, passed=False), note=many)
    assert difference(row) == (
        f"max_rel 1.2e-06 would do at [0,3,8,8]: 0.7 became 0.7000012; {many}"
    )
    beyond = replace(row, max_rel=2e-5)
    assert difference(beyond).startswith("max_rel 2e-05 > 1e-05 at ")


@pytest.mark.parametrize(
    ("original", "rewritten", "line"),
    [
        (np.ones((2, 3)), np.ones((3, 2)), "float64[3, 2] instead of float64[2, 3]"),
        (np.array(["a"]), np.array(["b"]), "texts differ"),
        (np.array([np.nan]), np.array([1.0]), "NaN or Inf at other places"),
        (
            np.zeros(2),
            np.array([0, 0.5]),
            "at [1]: 0 became 0.5",
        ),
    ],
)
def test_a_difference_has_figures_only_where_two_numbers_should_be_near(
    original: np.ndarray, rewritten: np.ndarray, line: str
) -> None:
    row = compare("y", original, rewritten, Tolerance())
    assert not row.passed
    assert difference(row) == line


def test_the_reason_why_a_region_ends_is_not_cut() -> None:
    """Names of torch's exporter and of long operators left no room for it."""
    reason = "no rule runs GlobalAveragePool on packed tensors"
    stop = Stop(node="/pool/GlobalAveragePool", op="GlobalAveragePool", code="", reason=reason)
    ended = RegionReport(graph="", folded=["/conv/Conv"], carried=[], stops=[stop])
    assert region(ended).text.endswith(f"GlobalAveragePool /pool/GlobalAveragePool ({reason})")


def test_an_output_that_cannot_be_judged_does_not_differ() -> None:
    row = replace(output("y", "all", 0.0, passed=False), note=UNSTEADY_NOTE, caveat="unsteady")
    report = replace(
        passing(), verdict="unverified", outputs=[row], reasons=["y: " + UNSTEADY_NOTE]
    )
    assert difference(row) == UNSTEADY_NOTE
    root = ElementTree.fromstring(junit.render(report))
    (case,) = (c for c in root.iter("testcase") if c.get("classname") == "outputs")
    assert [(child.tag, child.get("message")) for child in case] == [("skipped", UNSTEADY_NOTE)]
    annotation = github.render(report, Path("m.onnx")).splitlines()[0]
    assert annotation == f"::error file=m.onnx,title=unverified::y: {UNSTEADY_NOTE}"


@pytest.mark.parametrize("proof", [DIFFERENT, NOT_PROVABLE, SKIPPED])
def test_what_is_not_proved_is_not_called_the_same(proof: Proof) -> None:
    same = "the rewritten model computes what the original computes"
    assert meaning(passing()) == same
    report = replace(passing(), proof=proof)
    assert meaning(report) != same
    assert verdict(report).endswith(f"; proof: {proof.verdict}; 6 new nodes exact on integers")
    assert proof_line(proof).startswith(f"{proof.verdict}: ")
    assert proof.reason in ElementTree.fromstring(junit.render(report)).find(
        ".//testcase[@classname='proof']/*"
    ).get("message")
    assert certificate(proof) == {}


def test_a_certificate_names_all_that_a_sceptic_needs() -> None:
    facts = {line.label: line.text for line in describe(passing(), is_full=True).facts}
    assert facts["primes"].startswith("8388593, 8388587; ")
    assert facts["extents"] == "audio [1, 43844, 1]; then audio [3, 87689, 1]"
    assert "259 values" in facts["proof"]
    assert "below 2^-61" in facts["proof"]
    assert facts["unknown functions of their inputs"] == "Loop, STFT"
    bare = certificate(replace(EQUAL, functions=[], extents=[{}]))
    assert list(bare.values())[1:] == ["there are no inputs", "none"]
    assert "primes" not in {line.label for line in describe(passing(), is_full=False).facts}


def test_an_equality_but_for_rounded_constants_names_their_number() -> None:
    rounded = replace(EQUAL, rounded=2)
    expected = "equal but for the rounding of 2 constants"
    assert proof_line(rounded).startswith(f"{expected}: both models compute the same function")
    assert f"; proof: {expected};" in f"{verdict(replace(passing(), proof=rounded))};"
    assert "rounding" not in proof_line(EQUAL)


def test_a_proved_difference_names_inputs_that_show_it() -> None:
    report = failing()
    found = report.witness
    assert found is not None
    seen = "seen on seed 0, normal, audio [1, 43844, 1]: note"
    line = f"{seen} differs by 0.021 (relative 0.007)"
    assert witness(report) == line
    for is_full in (True, False):
        facts = {item.label: item.text for item in describe(report, is_full=is_full).facts}
        assert facts["proof"].endswith(line)
        assert ("the models do not compute the same" in facts["proof"]) == is_full
    assert line in junit.render(report)
    optimized = replace(found, shapes={}, output=replace(found.output, level="all"))
    assert witness(replace(report, witness=optimized)) == (
        "seen on seed 0, normal: note differs by 0.021 (relative 0.007) with the runtime's own "
        "optimizations"
    )


@pytest.mark.parametrize(
    ("original", "rewritten", "gap"),
    [
        (np.ones((2, 3)), np.ones((3, 2)), ": float64[3, 2] instead of float64[2, 3]"),
        (np.array(["a"]), np.array(["b"]), ": texts differ"),
        (np.array([np.nan, 2]), np.array([1.0, 3]), ": NaN or Inf at other places"),
        (np.zeros(2), np.array([0, 0.5]), " differs by 0.5"),
        (np.array([4, 8]), np.array([4, 6]), " differs by 2 (relative 0.25)"),
    ],
)
def test_a_difference_that_is_seen_has_figures_where_it_has_a_size(
    original: np.ndarray, rewritten: np.ndarray, gap: str
) -> None:
    row = compare("y", original, rewritten, Tolerance())
    report = failing()
    assert report.witness is not None
    shown = witness(replace(report, witness=replace(report.witness, output=row)))
    assert shown == f"seen on seed 0, normal, audio [1, 43844, 1]: y{gap}"


def test_a_proved_difference_that_no_input_shows_says_so() -> None:
    unseen = replace(failing(), witness=None)
    assert witness(unseen) == "no input set showed the difference"
    assert witness(replace(unseen, input_sets=0)) == ""
    assert witness(replace(unseen, proof=None)) == ""
    for proof in (EQUAL, NOT_PROVABLE, SKIPPED):
        assert witness(replace(unseen, proof=proof)) == ""


def test_the_run_on_integers_is_said() -> None:
    reason = "Conv c: 3 of 7 integers differ"
    for outcome, words in (
        ("exact", "2 new nodes exact on integers"),
        ("different", f"a new node is not exact on integers: {reason}"),
        ("skipped", f"2 new nodes exact on integers, not all could be run: {reason}"),
    ):
        run = IntegerRun(verdict=outcome, reason=reason, nodes=2)
        assert integers(run) == words
        report = replace(passing(), integers=run)
        assert words in junit.render(report)
        assert ("<failure" in junit.render(report)) == (outcome == "different")
        assert ("<skipped" in junit.render(report)) == (outcome == "skipped")


def test_no_run_on_integers_is_not_said() -> None:
    report = replace(passing(), integers=IntegerRun(verdict="exact", reason="", nodes=0))
    assert (integers(None), integers(report.integers)) == ("", "")
    assert verdict(report).endswith("; proof: equal")
    assert "runtime" not in [line.label for line in describe(report, is_full=True).facts]


def test_the_gpu_is_one_line() -> None:
    assert gpu(None) == ""
    missing = Gpu(missing="nvidia-ml-py is missing")
    assert gpu(missing) == missing.missing
    device = Gpu(
        name="NVIDIA H200",
        driver="580.65",
        cuda="12.9.79",
        cudnn="9.14.0",
        before=GpuState(sm_mhz=1980, memory_mhz=3201),
        after=GpuState(sm_mhz=1755, memory_mhz=3201, throttled=["SwPowerCap"]),
        throttled=[[], ["SwPowerCap"], [], ["HwSlowdown", "SwPowerCap"]],
    )
    assert gpu(device) == (
        "NVIDIA H200, driver 580.65, CUDA 12.9.79, cuDNN 9.14.0; "
        "1980 MHz before and 1755 MHz after; "
        "throttled in 2 of 4 processes: HwSlowdown, SwPowerCap"
    )


def test_one_input_set_is_no_plural() -> None:
    assert verdict(replace(passing(), input_sets=1)).startswith("pass; 1 input set, ")


def test_the_picture_shows_where_a_verdict_begins() -> None:
    timing = passing().timing
    assert timing is not None
    for control, least in ((0.021, "below 0.960 or above 1.042"), (0.001, "above 1.020")):
        picture = pictures.speed(timing.speedup, timing.low, timing.high, control, "speed")
        assert f"{least}</title>" in picture
        assert "right of the band" not in picture


@pytest.mark.parametrize(("count", "hidden"), [(4, ""), (5, "outputs: 2 more rows pass")])
def test_a_brief_table_counts_the_rows_that_it_leaves_out(count: int, hidden: str) -> None:
    """An output has a row for each level."""
    rows = [output(f"y{i}", level) for i in range(count) for level in ("disabled", "all")]
    report = replace(passing(), outputs=rows, timing=None)
    brief, full = (describe(report, is_full=is_full) for is_full in (False, True))
    assert [len(table.rows) for table in (*brief.tables, *full.tables)] == [8, 2 * count]
    assert [str(line) for line in brief.facts] == ([f"{hidden}; see --details"] if hidden else [])
    assert not any("more rows" in str(line) for line in (*brief.remarks, *full.facts))
