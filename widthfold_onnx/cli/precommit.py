"""Define the pre-commit hook: `optimize --check` on every file that was changed.

It is a command of its own, as pre-commit passes all files at once, and `optimize` takes one model.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from widthfold_onnx.cli.common import MODEL, guarded, leave
from widthfold_onnx.cli.options import planning_options
from widthfold_onnx.errors import CheckFailedError
from widthfold_onnx.model.loader import load
from widthfold_onnx.options import DEFAULT_FACTOR, FoldOptions, SearchOptions
from widthfold_onnx.text import quoted


@click.command("precommit")
@guarded
@click.argument("models", nargs=-1, type=MODEL)
@planning_options(str(DEFAULT_FACTOR))
def precommit_command(models: tuple[Path, ...], fold_options: FoldOptions) -> None:
    """Exit 1 if anything of MODELS would be changed; nothing is written."""
    from widthfold_onnx.reports.described.layers import changes_text

    findings = []
    for model in models:
        loaded = load(model)
        from widthfold_onnx.pipeline import optimize

        counts = optimize(loaded, fold_options, SearchOptions()).report.summary
        if counts.is_changing:
            findings.append(f"{quoted(str(model))}: {changes_text(counts)}")
    if findings:
        leave("; ".join(findings), CheckFailedError.exit_code)


if __name__ == "__main__":
    precommit_command(sys.argv[1:])  # else click takes patterns for file names on Windows
