"""Which folded site is to blame: the first whose output differs although its input agrees.

The values before and behind each site, be they there under their names or packed, are compared in
the order of the original graph.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.chain import Mismatch
from widthfold_onnx.evidence.inline import inlined
from widthfold_onnx.evidence.parity import compare
from widthfold_onnx.evidence.rows import Outputs, figure
from widthfold_onnx.evidence.sites import (
    MAX_BYTES,
    folded_sites,
    hidden_sites,
    natural,
    run_with,
    tensors_of,
    values_at,
)
from widthfold_onnx.model.inlining import inlined as without_functions
from widthfold_onnx.options import Tolerance, VerifyOptions
from widthfold_onnx.runtime.stored import InputSet


def first_difference(
    original: Path,
    rewritten: Path,
    item: InputSet,
    options: VerifyOptions,
    report: Callable[[str], None],
) -> str:
    """Name the first folded site that differs, or say why none is named.

    Args:
        original: model file.
        rewritten: model file.
        item: inputs on which the models differ.
        options: where both run, without the runtime's optimizations, and what counts as equal.
        report: gets a line of text before each run.
    """
    try:
        # Without the functions that hold sites, as every Document is.
        before, _ = without_functions(inlined(original, MAX_BYTES))
        after = inlined(rewritten, MAX_BYTES)
        sites = folded_sites(before.graph, after.graph)
        hidden = hidden_sites(after.graph)
        if not sites:
            return f"not bisected: {hidden or 'no'} folded sites, none of them in the main graph"
        tensors = tensors_of(after.graph)
        wanted = values_at(before.graph, sites) & tensors.keys()
        report(f"bisecting {len(sites)} folded sites")
        (reference,) = run_with(before, wanted, [item], options)
        (returned,) = run_with(after, {tensors[name][0] for name in wanted}, [item], options)
        candidate = {name: natural(returned, tensors[name]) for name in wanted}
    except (Mismatch, UnverifiedError) as error:
        return f"not bisected: {error}"
    beyond = f"; {hidden} folded sites in subgraphs were not compared" if hidden else ""
    for site in sites:
        if site.output not in wanted:
            return f"first differs at {site.name}: its output {site.output} is gone"
        read = [name for name in site.inputs if name in wanted]
        if any(_difference(name, reference, candidate, options.tolerance) for name in read):
            continue  # it only hands on what an earlier node did
        found = _difference(site.output, reference, candidate, options.tolerance)
        if found:
            return f"first differs at {site.name}: {found} on {item.label}"
    return f"no folded site differs by itself: the cause lies elsewhere{beyond}"


def _difference(name: str, reference: Outputs, candidate: Outputs, tolerance: Tolerance) -> str:
    row = compare(name, reference[name], candidate[name], tolerance)
    if row.passed:
        return ""
    if row.max_rel is None or not row.nonfinite_match:
        return row.note or "values differ"
    return f"max_rel {figure(row.max_rel)}, allowed {row.tolerance:g}"
