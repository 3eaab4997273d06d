"""Describe each result as tables and lines, which every renderer of `reports` shows alike.

A file describes results, or a part that results share. `cli`, `olive` and `reports` import it.
"""

from __future__ import annotations

from typing import assert_never

from widthfold_onnx.reports.described import layers, tuning, verification
from widthfold_onnx.reports.description import Description, Detail
from widthfold_onnx.results import InspectReport, OptimizeReport, TuneReport, VerifyReport

AnyReport = VerifyReport | OptimizeReport | InspectReport | TuneReport


def described(report: AnyReport, detail: Detail = Detail.BRIEF) -> Description:
    """Describe the result of a command."""
    match report:
        case VerifyReport():
            return verification.describe(report, detail)
        case OptimizeReport():
            return layers.describe_optimization(report, detail)
        case InspectReport():
            return layers.describe_inspection(report, detail)
        case TuneReport():
            return tuning.describe(report)
        case _:
            assert_never(report)
