"""Describe each result as tables and lines, which every renderer of `reports` shows alike.

Each file describes some results, or a part that several results share.
"""

from __future__ import annotations

from typing import assert_never

from widthfold_onnx.reports.described import layers, tuning, verification
from widthfold_onnx.reports.description import Description
from widthfold_onnx.results import InspectReport, OptimizeReport, TuneReport, VerifyReport

AnyReport = VerifyReport | OptimizeReport | InspectReport | TuneReport


def described(report: AnyReport, *, is_full: bool = False) -> Description:
    """Describe the result of a command.

    A brief description, for a terminal and a pipe, holds what a user decides by. A full one, for
    `--details`, Markdown and HTML, adds everything else: layers that were left alone, regions,
    times of nodes, the certificate of the proof, the environment, the command.
    """
    match report:
        case VerifyReport():
            return verification.describe(report, is_full=is_full)
        case OptimizeReport():
            return layers.describe_optimization(report, is_full=is_full)
        case InspectReport():
            return layers.describe_inspection(report, is_full=is_full)
        case TuneReport():
            return tuning.describe(report)
        case _:
            assert_never(report)
