"""Reports as JUnit XML, read back by the library that writes it."""

from __future__ import annotations

from xml.etree import ElementTree

from junitparser import JUnitXml
from msgspec.structs import replace

from tests.reports.sample import NOT_PROVABLE, SKIPPED, failing, hostile, passing
from widthfold_onnx.reports.junit import render
from widthfold_onnx.results import VerifyReport


def outcomes(report: VerifyReport) -> dict[tuple[str, str], str]:
    root = ElementTree.fromstring(render(report))
    return {
        (case.get("classname", ""), case.get("name", "")): "".join(
            child.tag for child in case if child.tag != "system-out"
        )
        for case in root.iter("testcase")
    }


def test_a_case_for_every_output_the_proof_and_the_time() -> None:
    report = passing()
    cases = outcomes(report)
    assert len(cases) == len(report.outputs) + 4
    assert set(cases.values()) == {""}
    assert ("outputs", "note at level disabled") in cases
    assert {("proof", "proof by evaluation"), ("proof", "new nodes on integers")} < cases.keys()
    # What a run did not come to has no case; all others have the same names.
    assert cases.keys() - outcomes(failing()).keys() == {("proof", "new nodes on integers")}


def test_failures_say_how_much_and_where() -> None:
    cases = outcomes(failing())
    assert cases["outputs", "note at level disabled"] == "failure"
    assert cases["proof", "proof by evaluation"] == "failure"
    assert cases["verdict", "verdict"] == "failure"
    text = render(failing())
    assert 'message="max_rel 0.007 &gt; 1e-05 at [0,3,8,8]: 0.7 became 0.707"' in text


def test_no_statement_is_an_error_and_no_verdict_on_speed_is_skipped() -> None:
    report = passing()
    assert report.timing is not None
    unsure = replace(report.timing, verdict="inconclusive")
    cases = outcomes(replace(report, verdict="unverified", timing=unsure))
    assert cases["verdict", "verdict"] == "error"
    assert cases["timing", "original / rewritten"] == "skipped"
    assert ("timing", "original / rewritten") not in outcomes(replace(report, timing=None))


def test_what_is_not_proved_is_skipped() -> None:
    for proof in (NOT_PROVABLE, SKIPPED):
        cases = outcomes(replace(passing(), proof=proof))
        assert cases["proof", "proof by evaluation"] == "skipped"
    assert ("proof", "proof by evaluation") not in outcomes(replace(passing(), proof=None))


def test_counts_times_and_properties_are_read_back() -> None:
    (suite,) = JUnitXml.fromstring(render(failing()).encode())
    assert (suite.tests, suite.failures, suite.errors, suite.skipped) == (7, 3, 0, 0)
    properties = {p.name: p.value for p in suite.properties()}
    assert suite.name == properties["rewritten"] == "pitch_cnn.folded.onnx"
    assert properties["onnxruntime"] == "1.31.1"
    assert properties["speedup"] == "1.702"
    assert 0 < suite.time < 0.01


def test_hostile_names_are_text() -> None:
    text = render(hostile())
    (suite,) = JUnitXml.fromstring(text.encode())
    assert suite.name.startswith(r"\x1b[2J<script>alert(1)</script>]]>|`$x^2$`@you\u202e-->")
