"""Finds where two models begin to differ on the runtime: at the first value that changed.

Both are made to return the values that the rewriting had to preserve, and run without the runtime's
optimizations.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.inline import MAX_BYTES, inlined
from widthfold_onnx.evidence.parity import compare
from widthfold_onnx.evidence.proof.correspondence import Correspondence
from widthfold_onnx.evidence.proof.program import program
from widthfold_onnx.evidence.rounds import run_with
from widthfold_onnx.evidence.rows import both, figure, output_names
from widthfold_onnx.model.scope import describe_node
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.runtime.stored import InputSet
from widthfold_onnx.text import printable


def first_difference(
    original: Path,
    rewritten: Path,
    item: InputSet,
    options: VerifyOptions,
    report: Callable[[str], None],
) -> str:
    """Name the first preserved value that differs, or say why none is named.

    Args:
        original: model file.
        rewritten: model file.
        item: inputs on which the models differ.
        options: where both run, and what counts as equal.
        report: gets a line of text before the runs.
    """
    try:
        models = [program(inlined(path, MAX_BYTES), None) for path in (original, rewritten)]
        pair = Correspondence(*models)
        names = [name for name in pair.targets if pair.is_written(name)]
        if not names:
            return "no value changed: the cause lies elsewhere"
        report(f"comparing {len(names)} values that changed")
        reference, candidate = (run_with(m.proto, names, [item], options)[0] for m in models)
    except UnverifiedError as error:
        return f"not bisected: {error}"
    returned = output_names([reference], [candidate])
    # A value that is a sequence has the names out[0], out[1], ...
    parts = [(name, n) for name in names for n in returned if name in (n, n.rpartition("[")[0])]
    for name, part in parts:
        row = compare(part, *both(part, reference, candidate), options.tolerance)
        if not row.passed:
            known = row.max_rel is not None and row.nonfinite_match
            found = (
                f"max_rel {figure(row.max_rel or 0)}, allowed {row.tolerance:g}" if known else ""
            )
            where = f"{printable(part)}, {describe_node(pair.new.node(name))}"
            return (
                f"first differs at {where}: {found or row.note or 'values differ'} on {item.label}"
            )
    return "no value that changed differs by itself: the cause lies elsewhere"
