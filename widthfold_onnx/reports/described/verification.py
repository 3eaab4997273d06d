"""Describes a verification: outputs, proof, integers and verdict; `described.timing` its times."""

from __future__ import annotations

from collections.abc import Sequence

from widthfold_onnx.reports.described import inputs, timing
from widthfold_onnx.reports.description import Column, Description, Detail, Line, Table, tabulated
from widthfold_onnx.reports.words import clauses, counted, figure
from widthfold_onnx.results import Environment, IntegerRun, OutputParity, Proof, VerifyReport

_PROOFS = {
    "equal": "both models compute the same function",
    "different": "the models do not compute the same from the same inputs and weights",
    "not provable": "whether the models compute the same function is not known",
    "skipped": "nothing was evaluated",
}

_BRIEF_OUTPUTS = 8
"""Rows of outputs in a brief description, if fewer differ."""


def difference(row: OutputParity) -> str:
    """Say why an output did not pass."""
    if row.caveat == "unsteady":  # the figures compare runs of the original
        return row.note
    if not row.nonfinite_match:
        line = "NaN or Inf at other positions"
    elif row.max_rel is None:
        line = "not comparable"
    elif row.max_rel > row.tolerance:
        line = f"max_rel {figure(row.max_rel)} > {figure(row.tolerance)}"
    else:
        line = f"max_rel {figure(row.max_rel)} would do"
    if row.worst is not None:
        where = ",".join(map(str, row.worst.index))
        line += f" at [{where}]: {row.worst.original:.9g} became {row.worst.rewritten:.9g}"
    return clauses(line, row.note)


OUTPUTS: tuple[Column[OutputParity], ...] = (
    Column("output", lambda row: row.name),
    Column("type", lambda row: row.dtype, Detail.PAGE),
    Column("runtime level", lambda row: row.level),
    Column("max abs", lambda row: figure(row.max_abs)),
    Column("mean abs", lambda row: figure(row.mean_abs), Detail.PAGE),
    Column("max rel", lambda row: figure(row.max_rel)),
    Column("rounding moves", lambda row: figure(row.movement)),
    Column("allowed", lambda row: figure(row.tolerance)),
    Column("passed", lambda row: "pass" if row.passed else "fail"),
    Column("note", lambda row: row.note if row.passed else difference(row), sentences=True),
)


def describe(report: VerifyReport, detail: Detail) -> Description:
    """Describe the result of `verify`."""
    facts = []
    if report.proof is not None:
        facts.append(Line("proof", proof(report.proof)))
    if exactness := integers(report.integers):
        facts.append(Line("runtime", exactness))
    tables, hidden = _outputs(report.outputs, detail)
    if report.timing is not None:
        tables += [*timing.tables(report.timing, detail), *inputs.size_table(report.timing.sizes)]
        facts += timing.lines(report.timing, detail)
    facts += [Line("plan", report.note)] if report.note else []
    full = detail >= Detail.FULL
    if full:
        facts.append(Line("with", environment(report.environment)))
        facts += [Line("repeat", report.environment.command)] if report.environment.command else []
    return Description(
        head=Line("verdict", verdict(report)),
        assumptions=inputs.assumptions(report.assumed, report.values),
        tables=tables,
        facts=facts,
        certificate=certificate(report.proof) if full and report.proof is not None else (),
        remarks=[Line("", text) for text in (*report.reasons, *hidden)],
        verdict=report.verdict,
        meaning=meaning(report),
        models=(report.original, report.rewritten),
    )


def _outputs(rows: Sequence[OutputParity], detail: Detail) -> tuple[list[Table], list[str]]:
    """Return the table of outputs, and a note on rows that a brief table leaves out.

    A brief table holds outputs that differ, then the outputs that are nearest to differing.
    """
    if detail < Detail.FULL and len(rows) > _BRIEF_OUTPUTS:
        differing = sum(not row.passed for row in rows)
        count = max(_BRIEF_OUTPUTS, differing)
        nearest = sorted(rows, key=_margin)[:count]
        shown = [row for row in rows if row in nearest]
        hidden = [f"{len(rows) - count} more outputs pass, see --details"] * (len(rows) > count)
        return tabulated("outputs", OUTPUTS, shown, detail), hidden
    return tabulated("outputs", OUTPUTS, rows, detail), []


def _margin(row: OutputParity) -> tuple[bool, float]:
    """Order outputs by how near they are to differing: the nearest first."""
    if row.max_rel is None or not row.tolerance:
        return row.passed, -(row.max_rel or 0.0)
    return row.passed, -row.max_rel / row.tolerance


def meaning(report: VerifyReport) -> str:
    """Say what the verdict means for the models, without their names."""
    reached = report.timing.fail_under_verdict if report.timing is not None else "pass"
    is_equal = report.proof is not None and report.proof.verdict == "equal"
    agreement = (
        "the rewritten model computes what the original computes"
        if is_equal
        else "the rewritten model returned what the original returned, within the tolerance"
    )
    # Only models that agree are timed; beside the speed only the proof can fail.
    if report.verdict == reached != "pass" and is_equal:
        return f"{agreement}, but {'is' if reached == 'fail' else 'may be'} too slow"
    return {
        "pass": agreement,
        "fail": "the rewritten model does not compute what the original computes",
        "unverified": "no statement about the rewritten model is possible",
    }[report.verdict]


def verdict(report: VerifyReport) -> str:
    """Return the verdict and the figures that it rests on."""
    errors = [row.max_rel for row in report.outputs if row.max_rel is not None]
    forgiven = {row.name for row in report.outputs if row.caveat == "ill-conditioned"}
    sets = counted(report.input_sets, "input set")
    if errors:
        sets += f", largest relative error {max(errors):.1e}"
    if forgiven:
        outputs = counted(len(forgiven), "output")
        sets += f" ({outputs} judged by how far rounding moves the original)"
    return clauses(
        report.verdict,
        sets,
        "" if report.proof is None else f"proof: {report.proof.verdict}",
        integers(report.integers),
    )


def integers(run: IntegerRun | None) -> str:
    """Say whether the runtime computes the changed nodes exactly on integers; "" if none ran."""
    if run is None or (run.verdict == "exact" and not run.nodes):
        return ""
    exact = f"{counted(run.nodes, 'new node')} exact on integers"
    return {
        "exact": exact,
        "different": f"a new node is not exact on integers: {run.reason}",
        "skipped": f"{exact}, not all could be run: {run.reason}",
    }[run.verdict]


def proof(result: Proof) -> str:
    """Describe the proof in one sentence; the reasons of the report say why it failed."""
    line = f"{result.verdict}: {_PROOFS[result.verdict]}"
    if result.verdict != "equal":
        return line
    sets = f" at {len(result.extents)} sets of extents" if len(result.extents) > 1 else ""
    return (
        f"{line}{sets} ({counted(result.values, 'value')} compared; the probability of an error is "
        f"below 2^-{result.error_bits})"
    )


def certificate(result: Proof) -> Sequence[str]:
    """Return the proof as sentences that can be checked; none if nothing was proved."""
    if result.verdict != "equal":
        return ()
    extents = (
        ", ".join(f"{name} {dims}" for name, dims in shapes.items()) for shapes in result.extents
    )
    return (
        "Both models were evaluated on random whole numbers modulo each of the primes "
        f"{', '.join(map(str, result.primes))}, in place of inputs and weights; equal weights got "
        "equal numbers.",
        f"Extents of the inputs: {'; then '.join(filter(None, extents)) or 'there are no inputs'}.",
        f"{counted(result.values, 'value')} that both models name were found equal. If the models "
        f"were different functions, the probability of that would be below 2^-{result.error_bits}.",
        "Operators taken for unknown functions of all that they read: "
        f"{', '.join(result.functions) or 'none'}.",
    )


def provider(machine: Environment) -> str:
    """Return the provider that ran the models, with the options that were asked for."""
    options = {**machine.provider_options, **machine.session_options}
    return ", ".join([machine.provider, *(f"{name}={value}" for name, value in options.items())])


def environment(machine: Environment) -> str:
    """Return versions, provider and machine."""
    return (
        f"widthfold {machine.widthfold}, onnx {machine.onnx}, onnxruntime {machine.onnxruntime}, "
        f"Python {machine.python}, {provider(machine)}, {machine.machine}, "
        f"{counted(machine.cores, 'core')}, load {machine.load_before:.2f} before and "
        f"{machine.load_after:.2f} after, {figure(machine.mhz_before, 5)} MHz before and "
        f"{figure(machine.mhz_after, 5)} after"
    )
