"""Describe the result of `verify`: outputs, proof, integers, times, and the verdict."""

from __future__ import annotations

from collections.abc import Sequence

from widthfold_onnx.reports.described import inputs
from widthfold_onnx.reports.description import (
    Column,
    Description,
    Line,
    Table,
    tabulated,
    transposed,
)
from widthfold_onnx.reports.words import (
    clauses,
    counted,
    figure,
    list_text,
    short_text,
    size_text,
)
from widthfold_onnx.results import (
    Baseline,
    Environment,
    Gpu,
    GpuState,
    IntegerRun,
    NodeTime,
    OutputParity,
    Proof,
    Side,
    Timing,
    VerifyReport,
)
from widthfold_onnx.text import printable

_PROOFS = {
    "equal": "both models compute the same function",
    "different": "the models do not compute the same from the same inputs and weights",
    "not provable": "whether the models compute the same function is not known",
    "skipped": "nothing was evaluated",
}

_BRIEF_OUTPUTS = 8
"""Most outputs in a brief description, unless more of them differ."""

_SLOWEST = 8
"""Nodes of each model whose times are shown."""

_NAME = 60
"""Most characters of the name of an output in a line."""

_SHAPES = 120
"""Most characters of shapes in a line."""

_CLOCKS = {"thread": "its processor time", "wall": "wall time"}


def difference(row: OutputParity) -> str:
    """Say why an output did not pass."""
    # An unsteady output was compared with itself; outputs of different shapes were not compared.
    if row.caveat == "unsteady" or row.worst is None:
        return row.note
    if row.max_rel is None:
        return clauses(f"at {row.worst.change}", row.note)
    beyond = row.max_rel > row.tolerance
    bound = f"> {figure(row.tolerance)}" if beyond else "would do"
    return clauses(f"max_rel {figure(row.max_rel)} {bound} at {row.worst.change}", row.note)


OUTPUTS: tuple[Column[OutputParity], ...] = (
    Column("output", lambda row: row.name, names=True),
    Column("type", lambda row: row.dtype, is_detail=True),
    Column("runtime level", lambda row: row.level),
    Column("max abs", lambda row: figure(row.max_abs)),
    Column("mean abs", lambda row: figure(row.mean_abs), is_detail=True),
    Column("max rel", lambda row: figure(row.max_rel)),
    Column("rounding moves", lambda row: figure(row.movement)),
    Column("allowed", lambda row: figure(row.tolerance)),
    Column("passed", lambda row: "pass" if row.passed else "fail"),
    Column("note", lambda row: row.note if row.passed else difference(row), sentences=True),
)

SIDES: tuple[Column[Side], ...] = (
    Column("level", lambda side: side.level),
    Column("p50 ms", lambda side: f"{side.median_ms:.3f}"),
    Column("p90 ms", lambda side: f"{side.p90:.3f}", is_detail=True),
    Column("p99 ms", lambda side: f"{side.p99:.3f}"),
    Column("outliers", lambda side: str(side.outliers), is_detail=True),
    Column("load ms", lambda side: f"{side.load_ms:.1f}"),
    Column("first run ms", lambda side: f"{side.first_ms:.3f}", is_detail=True),
    Column("file", lambda side: size_text(side.file_bytes)),
    Column("ran on", lambda side: ", ".join(_placement(side))),
)
"""The values of one model. Each is a line of the table, so that it fits a narrow terminal."""

NODES: tuple[Column[tuple[str, Side, NodeTime]], ...] = (
    Column("slowest nodes", lambda row: row[2].name, names=True),
    Column("model", lambda row: row[0]),
    Column("op", lambda row: row[2].op),
    Column("us", lambda row: f"{row[2].us:.0f}"),
    Column("of limit", lambda row: "" if row[2].reached is None else f"{row[2].reached:.0%}"),
    Column("fell back to", lambda row: row[2].provider if row[2] in row[1].fallbacks else ""),
)


def _placement(side: Side) -> list[str]:
    """Return how many nodes ran on each provider."""
    counts = side.providers.items()
    return [f"{count} on {name.removesuffix('ExecutionProvider')}" for name, count in counts]


def describe(report: VerifyReport, *, is_full: bool) -> Description:
    """Describe the result of `verify`."""
    timing = report.timing
    rows = report.outputs if is_full else _nearest(report.outputs)
    tables = tabulated("outputs", OUTPUTS, rows, is_full=is_full)
    hidden_count = len(report.outputs) - len(rows)
    facts = {"outputs": f"{hidden_count} more rows pass; see --details" if hidden_count else ""}
    facts["proof"] = witness(report)
    if is_full:  # briefly, the verdict says the rest
        facts["proof"] = (
            "" if report.proof is None else clauses(proof(report.proof), witness(report))
        )
        facts |= certificate(report.proof)
        facts["runtime"] = integers(report.integers)
    if timing is not None:
        tables += [*_times(timing, is_full=is_full), *inputs.size_table(timing.sizes)]
        limits = ", ".join(f"{rate / 1e9:.3g} G {work}" for work, rate in timing.limits.items())
        facts["limits, per second"] = limits if is_full else ""
        facts |= {"time": speed(timing), "gpu": gpu(timing.gpu)}
    facts["plan"] = report.note
    if is_full:
        environment = report.environment
        facts |= {"with": _machine(environment), "repeat": environment.command}
    return Description(
        head=Line("verdict", verdict(report)),
        assumptions=inputs.assumptions(report.assumed, report.values),
        tables=tables,
        facts=[Line(label, text) for label, text in facts.items() if text],
        remarks=[*(Line("", text) for text in report.reasons), *_weak_checks(report.outputs)],
        verdict=report.verdict,
        meaning=meaning(report),
        models=(report.original, report.rewritten),
    )


def _nearest(rows: Sequence[OutputParity]) -> list[OutputParity]:
    """Return the outputs of a brief table: those that differ, then those nearest to differing."""
    count = max(_BRIEF_OUTPUTS, sum(not row.passed for row in rows))
    nearest = sorted(rows, key=_margin)[:count]
    return [row for row in rows if row in nearest]


def _weak_checks(rows: Sequence[OutputParity]) -> list[Line]:
    """Name the outputs whose values show little or nothing, one line for each reason."""
    names: dict[str, list[str]] = {}
    for row in rows:
        if row.passed and row.level == "disabled" and row.caveat in ("meaningless", "saturated"):
            names.setdefault(row.note, []).append(row.name)
    return [Line(f"output {list_text(group, _NAME)}", note) for note, group in names.items()]


def _margin(row: OutputParity) -> tuple[bool, float]:
    """Return a sort key: outputs that are nearest to differing come first."""
    return row.passed, -row.share_of_allowed


def _times(timing: Timing, *, is_full: bool) -> list[Table]:
    """Return both models, and the slowest nodes of each; briefly, only nodes that fell back."""
    slowest = [
        (name, side, node)
        for name, side in timing.sides.items()
        for node in side.nodes[:_SLOWEST]
        if is_full or node in side.fallbacks
    ]
    models = transposed("models", "model", SIDES, timing.sides, is_full=is_full)
    return [models, *tabulated("nodes", NODES, slowest)]


def meaning(report: VerifyReport) -> str:
    """Say what the verdict means for the models, without their names."""
    speed_verdict = report.timing.fail_under_verdict if report.timing is not None else "pass"
    is_equal = report.proof is not None and report.proof.verdict == "equal"
    agreement = (
        "the rewritten model computes what the original computes"
        if is_equal
        else "the rewritten model returned what the original returned, within the tolerance"
    )
    # Only models that agree are timed; beside the speed only the proof can fail.
    if report.verdict == speed_verdict != "pass" and is_equal:
        return f"{agreement}, but {'is' if speed_verdict == 'fail' else 'may be'} too slow"
    return {
        "pass": agreement,
        "fail": "the rewritten model does not compute what the original computes",
        "unverified": "no statement about the rewritten model is possible",
    }[report.verdict]


def verdict(report: VerifyReport) -> str:
    """Return the verdict and the numbers behind it."""
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
        "" if report.proof is None else f"proof: {report.proof.verdict}{_rounding(report.proof)}",
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
    line = f"{result.verdict}{_rounding(result)}: {_PROOFS[result.verdict]}"
    if result.verdict != "equal":
        return line
    sets = f" at {len(result.extents)} sets of extents" if len(result.extents) > 1 else ""
    return (
        f"{line}{sets} ({counted(result.values, 'value')} that both name are equal; different "
        f"functions would agree with a probability below 2^-{result.error_bits})"
    )


def witness(report: VerifyReport) -> str:
    """Say which inputs show a difference that was proved; "" if there is none or nothing ran."""
    if report.proof is None or report.proof.verdict != "different" or not report.input_sets:
        return ""
    found = report.witness
    if found is None:
        return "no input set showed the difference"
    row = found.output
    shapes = (f"{name} {dims}" for name, dims in found.shapes.items())
    relative = "" if row.max_rel is None else f" (relative {figure(row.max_rel)})"
    is_measured = row.nonfinite_match and row.worst is not None
    gap = f" differs by {figure(row.max_abs)}{relative}" if is_measured else f": {row.note}"
    level = "" if row.level == "disabled" else " with the runtime's own optimizations"
    inputs_text = ", ".join(filter(None, (found.input_set, short_text(", ".join(shapes), _SHAPES))))
    return f"seen on {inputs_text}: {short_text(row.name, _NAME)}{gap}{level}"


def _rounding(result: Proof) -> str:
    if not result.rounded:
        return ""
    return f" but for the rounding of {counted(result.rounded, 'constant')}"


def certificate(result: Proof | None) -> dict[str, str]:
    """Return the details with which a reader can check a proof; {} if nothing was proved."""
    if result is None or result.verdict != "equal":
        return {}
    extents = (
        ", ".join(f"{name} {dims}" for name, dims in shapes.items()) for shapes in result.extents
    )
    return {
        "primes": f"{', '.join(map(str, result.primes))}; both models were evaluated on random "
        "whole numbers modulo each, in place of inputs and weights, equal ones for equal weights",
        "extents": "; then ".join(filter(None, extents)) or "there are no inputs",
        "unknown functions of their inputs": ", ".join(result.functions) or "none",
    }


def _machine(machine: Environment) -> str:
    """Return versions, provider with its options, and machine."""
    options = {**machine.provider_options, **machine.session_options}
    provider = [machine.provider, *(f"{name}={value}" for name, value in options.items())]
    processor = " ".join(filter(None, (machine.machine, machine.vectors)))
    return (
        f"widthfold {machine.widthfold}, onnx {machine.onnx}, onnxruntime {machine.onnxruntime}, "
        f"Python {machine.python}, {', '.join(provider)}, {processor}, "
        f"{counted(machine.cores, 'core')}, load {machine.load_before:.2f} before and "
        f"{machine.load_after:.2f} after, {figure(machine.mhz_before, 5)} MHz before and "
        f"{figure(machine.mhz_after, 5)} after"
    )


def speed(timing: Timing) -> str:
    """Return the verdict on speed and the numbers behind it."""
    shapes = " ".join(f"{name}:{','.join(map(str, dims))}" for name, dims in timing.shapes.items())
    levels = {side.level.partition(",")[0] for side in timing.sides.values()}
    return clauses(
        timing.verdict,
        f"original / rewritten = {timing.speedup:.3f} [{timing.low:.3f}, {timing.high:.3f}], "
        f"A/A control {1 + timing.control:.3f}, on {timing.provider}, "
        f"{counted(timing.threads, 'thread')} ({_CLOCKS[timing.clock]})"
        + (f", inputs {short_text(shapes, _SHAPES)}" if shapes else ""),
        "" if levels == {"all"} else f"{timing.same_level:.3f} with both at level all",
        "" if timing.baseline is None else baseline(timing.baseline),
        timing.note,
    )


def baseline(saved: Baseline) -> str:
    """Return the comparison of the speed-up with that of a saved report."""
    name = printable(saved.report)
    if saved.ratio is None:
        reasons = (printable(text, _SHAPES) for text in saved.differs)
        return f"not judged against {name}: {clauses(*reasons)}"
    return (
        f"{saved.verdict} beside {name}, where it was {saved.speedup:.3f}: "
        f"now / then = {saved.ratio:.3f} [{saved.low:.3f}, {saved.high:.3f}]"
    )


def gpu(device: Gpu | None) -> str:
    """Return GPU, versions and clocks, or why they are unknown; "" on the CPU."""
    if device is None or device.missing:
        return "" if device is None else device.missing
    versions = {"driver": device.driver, "CUDA": device.cuda, "cuDNN": device.cudnn}
    names = [f"{library} {version}" for library, version in versions.items() if version]
    states = [state or GpuState() for state in (device.before, device.after)]
    clocks = [figure(state.sm_mhz, 4) for state in states]
    throttled = [reasons for reasons in device.throttled if reasons]
    reasons = sorted(set().union(*throttled))
    return clauses(
        ", ".join([device.name, *names]),
        f"{clocks[0]} MHz before and {clocks[1]} MHz after",
        f"throttled in {len(throttled)} of {counted(len(device.throttled), 'process')}: "
        f"{', '.join(reasons)}"
        if throttled
        else "",
    )
