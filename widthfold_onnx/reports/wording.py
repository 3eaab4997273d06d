"""Formats sentences and figures that several forms of a report share, so that they agree."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from widthfold_onnx.results import (
    Baseline,
    CompanionReport,
    Environment,
    FoldedNode,
    Gain,
    InspectSite,
    IntegerRun,
    NodeTime,
    OptimizeSummary,
    OutputParity,
    Proof,
    RegionReport,
    SearchReport,
    SiteReport,
    Throughput,
    Timing,
    VerifyReport,
)
from widthfold_onnx.text import printable

_EPSILON = {"float16": 2**-10, "bfloat16": 2**-7, "float32": 2**-23, "float64": 2**-52}
_SHAPES = 120
"""Characters of the shapes that were timed."""

SLOWEST = 8
"""Nodes of each model whose times are shown."""

UNKEPT = "not kept, because the store may only be read"

_NAMES = 4
"""Names of a list that are shown."""

_STOP = 72
"""Characters of one of them."""

_REASON = 200
"""Characters of one that comes with its reason."""

_NEAR_ZERO = 1000
"""Factor above the ULP that the largest error explains from which they are of tiny values."""


def figure(value: float | None, digits: int = 2) -> str:
    """Format a number with few digits, "-" if there is none."""
    return "-" if value is None else f"{value:.{digits}g}"


def ulp(row: OutputParity) -> str:
    """Format the largest distance in ULP, and mark it near 0, where it says little.

    There an ULP is as small as the value, so that a negligible error is millions of them.
    """
    if row.ulp is None or row.max_rel is None or row.dtype not in _EPSILON:
        return "-" if row.ulp is None else str(row.ulp)
    # The largest error, in ULP of the largest value.
    expected = row.max_rel / _EPSILON[row.dtype]
    return f"{row.ulp:.1e} near 0" if row.ulp > _NEAR_ZERO * (expected + 1) else str(row.ulp)


def size(count: int) -> str:
    """Format a number of bytes for people."""
    return f"{count / 1024:.1f} KiB" if count < 1 << 20 else f"{count / (1 << 20):.1f} MiB"


def counted(count: int, thing: str) -> str:
    """Return a number with its noun."""
    plural = "es" if thing.endswith("s") else "s"
    return f"{count} {thing}{'' if count == 1 else plural}"


def kinds(sites: Sequence[SiteReport | InspectSite]) -> str:
    """List the operators of some sites: "Conv and Gemm"; "linear" if there is no site."""
    *others, last = sorted({site.op for site in sites}) or ["linear"]
    return f"{', '.join(others)} and {last}" if others else last


def already_folded(model: str) -> str:
    """Say that a model is not folded again."""
    return f"{model} carries folds of an earlier run and is not folded again; fold the original"


def short(name: str, limit: int) -> str:
    """Shorten a name to both ends, escaped; exporters write long names that start alike."""
    shown = printable(name, 10_000)
    if len(shown) <= limit:
        return shown
    return f"{shown[: limit // 2 - 1]}…{shown[-(limit // 2) :]}"


def slowest(timing: Timing) -> list[tuple[str, NodeTime]]:
    """Return the slowest nodes of both models, each with the name of its model."""
    sides = (("original", timing.original), ("rewritten", timing.rewritten))
    return [(name, node) for name, side in sides for node in side.nodes[:SLOWEST]]


def reached(node: NodeTime) -> str:
    """Format how near a node comes to what the machine can do, "" if that is not known."""
    return "" if node.reached is None else f"{node.reached:.0%}"


def limits(timing: Timing) -> str:
    """Return what the machine can do, "" if it was not measured."""
    found = ", ".join(f"{rate / 1e9:.3g} G {what}" for what, rate in timing.limits.items())
    return f"limits, per second: {found}" if found else ""


def provider(environment: Environment) -> str:
    """Return the provider that ran the models, with the options that were asked for."""
    given = environment.provider_options.items(), environment.session_options.items()
    options = itertools.chain(*given)
    return ", ".join([environment.provider, *(f"{name}={value}" for name, value in options)])


def gain(found: Gain) -> str:
    """Format a ratio and its interval, or say that it is predicted."""
    if found.predicted:
        return f"{found.ratio:.2f}x predicted"
    return f"{found.ratio:.2f}x [{found.low:.2f}, {found.high:.2f}]"


def spread(sites: Sequence[SiteReport]) -> str:
    """Say how far Inf and NaN may spread, "" if nowhere."""
    factors = [site.spread for site in sites if site.spread is not None and site.spread > 1]
    if not factors:
        return ""
    return (
        f"Inf and NaN may spread within a sample: at {counted(len(factors), 'fold')}, to up to "
        f"{max(factors):g} times as many outputs"
    )


def region(found: RegionReport) -> str:
    """Describe a region in one line: its nodes, what it carries, and where it ends."""
    where = f" in {found.graph}" if found.graph else ""
    carried = _first(found.carried) if found.carried else "nothing"
    stops = [f"{stop.op} {stop.node} ({stop.reason})" for stop in found.stops]
    end = f"; stops at {_first(stops, _REASON)}" if stops else ""
    return f"region of {_first(found.folded)}{where}: carries {carried}{end}"


def companion(found: CompanionReport) -> str:
    """Say in one line what became of the nodes that a companion matches."""
    said = []
    if found.nodes:
        became = " or ".join(f"({one})" if "," in one else one for one in found.became)
        said = [f"{counted(len(found.nodes), 'node')} {_DONE[found.status]} {became}"]
    if found.gain is not None:
        other = found.gain_on_smooth
        also = f", on smooth inputs at {gain(other)}" if other is not None else ""
        said.append(f"the whole model ran at {gain(found.gain)} with it{also}")
    if found.reason:
        said.append(found.reason)
    if found.refused:
        stops = [f"{stop.op} {stop.node} ({stop.code}: {stop.reason})" for stop in found.refused]
        said.append(f"refused: {_first(stops, _REASON)}")
    return f"companion {found.name}: {'; '.join(said)}"


def changes(counts: OptimizeSummary) -> str:
    """Say what would be changed."""
    parts = (
        (counts.folded, "node", "folded"),
        (counts.exchanged, "node", "exchanged"),
        (counts.frozen, "weight", "frozen"),
    )
    return ", ".join(f"{counted(n, what)} would be {done}" for n, what, done in parts if n)


def frozen(counts: OptimizeSummary) -> str:
    """Say that the interface has changed."""
    return f"{counted(counts.frozen, 'weight')} taken out of the inputs"


_DONE = {"exchanged": "became", "kept": "could become"}


def _first(names: Sequence[str], limit: int = _STOP) -> str:
    """List the first of some names, and say how many more there are."""
    shown = ", ".join(short(name, limit) for name in names[:_NAMES])
    more = len(names) - _NAMES
    return f"{shown} and {more} more" if more > 0 else shown


def search(report: SearchReport) -> str:
    """Describe the result of the search for the fastest forms."""
    if not report.layers and report.whole is None:
        return "search: no layer has a form to measure"
    taken = f"{counted(report.measured, 'measurement')} taken"
    known = taken if report.measured or report.left else "all measured before"
    if report.predicted:
        known = f"{counted(report.predicted, 'layer')} predicted for {report.target}, not measured"
    tried = f"{counted(report.forms, 'form')} of {counted(report.layers, 'layer')}"
    said = f"search on {report.provider}: {tried}, {known}"
    if report.measured and report.store_read_only:
        said += f" and {UNKEPT}"
    if report.interrupted:
        said += ", ended early"
    if report.left:
        said += f", {counted(report.left, 'layer')} left to measure"
    if report.accepted and report.whole is None:
        return f"{said}; the whole model was not timed"
    if report.whole is None:
        gains = "is sure to gain" if report.predicted else "gains"
        some = "that was measured " if report.left and not report.predicted else ""
        said += f"; no choice of forms {some}{gains}"
        return f"{said}; {report.note}" if report.note else said
    if not report.whole.pairs:
        return f"{said}; folded, the whole model did not run"
    if not report.accepted:
        said += f"; folded, the whole model ran at {gain(report.whole)}, not faster beyond noise"
    else:
        said += f"; the whole model ran at {gain(report.whole)} of the original's best"
    if report.folded_setting:
        said += f"; deploy it at level {report.folded_setting}"
        said += f" (the original is fastest at {report.original_setting})"
    return f"{said}; {report.note}" if report.note else said


def meaning(report: VerifyReport) -> str:
    """Say what the verdict means for the models, without their names."""
    reached = report.timing.fail_under_verdict if report.timing is not None else "pass"
    is_equal = report.proof is not None and report.proof.verdict == "equal"
    agrees = (
        "the rewritten model computes what the original computes"
        if is_equal
        else "the rewritten model returned what the original returned, within the tolerance"
    )
    # Only models that agree are timed; beside the speed only the proof can fail.
    if report.verdict == reached != "pass" and is_equal:
        too_slow = "is too slow" if reached == "fail" else "may be too slow"
        return f"{agrees}, but {too_slow}"
    return {
        "pass": agrees,
        "fail": "the rewritten model does not compute what the original computes",
        "unverified": "no statement about the rewritten model is possible",
    }[report.verdict]


def verdict(report: VerifyReport) -> str:
    """Return the verdict and the figures that it rests on."""
    errors = [row.max_rel for row in report.outputs if row.max_rel is not None]
    line = f"{report.verdict}; {counted(report.input_sets, 'input set')}"
    forgiven = {row.name for row in report.outputs if row.caveat == "ill-conditioned"}
    if errors:
        line += f", largest relative error {max(errors):.1e}"
    if forgiven:
        count = counted(len(forgiven), "output")
        line += f" ({count} judged by how far rounding moves the original)"
    if report.proof is not None:
        line += f"; proof: {report.proof.verdict}"
    if report.integers is not None:
        line += f"; {integers(report.integers)}"
    return line


def integers(found: IntegerRun) -> str:
    """Say whether the runtime computes the changed nodes exactly on integers."""
    said = f"{counted(found.nodes, 'new node')} exact on integers"
    return {
        "exact": said,
        "different": f"a new node is not exact on integers: {found.reason}",
        "skipped": f"{said}, not all could be run: {found.reason}",
    }[found.verdict]


_PROOFS = {
    "equal": "both models compute the same function",
    "different": "the models do not compute the same from the same inputs and weights",
    "not provable": "whether the models compute the same function is not known",
    "skipped": "nothing was evaluated",
}


def proof(found: Proof) -> str:
    """Describe the result of the proof in one sentence; the report's reasons say why it failed."""
    line = f"{found.verdict}: {_PROOFS[found.verdict]}"
    if found.verdict != "equal":
        return line
    tried = f" at {len(found.extents)} sets of extents" if len(found.extents) > 1 else ""
    return (
        f"{line}{tried} ({counted(found.values, 'value')} compared; the probability of an error is "
        f"below 2^-{found.error_bits})"
    )


def certificate(found: Proof) -> Iterator[str]:
    """Yield sentences that state what was proved and can be checked; none if nothing was proved."""
    if found.verdict != "equal":
        return
    sizes = (
        ", ".join(f"{name} {dims}" for name, dims in extents.items()) for extents in found.extents
    )
    yield (
        "Both models were evaluated on random whole numbers modulo each of the primes "
        f"{', '.join(map(str, found.primes))}, in place of inputs and weights; equal weights got "
        "equal numbers."
    )
    yield f"Extents of the inputs: {'; then '.join(filter(None, sizes)) or 'there are no inputs'}."
    yield (
        f"{counted(found.values, 'value')} that both models name were found equal. If the models "
        f"were different functions, the probability of that would be below 2^-{found.error_bits}."
    )
    unknown = ", ".join(found.functions) or "none"
    yield f"Operators taken for unknown functions of all that they read: {unknown}."


def told(fold: FoldedNode) -> str:
    """Return what the record of a node says of its fold."""
    return "; ".join(filter(None, (fold.channels, fold.fold)))


def speed(timing: Timing) -> str:
    """Return the verdict on speed and the figures that it rests on."""
    before, after = timing.original, timing.rewritten
    clock = "its processor time" if timing.clock == "thread" else "wall time"
    line = (
        f"{timing.verdict}; original / rewritten = {timing.speedup:.3f} "
        f"[{timing.low:.3f}, {timing.high:.3f}], A/A control {1 + timing.control:.3f}, "
        f"{pairs(timing)}, {before.median_ms:.3f} ms (level {before.level}) and "
        f"{after.median_ms:.3f} ms (level {after.level}) on {timing.provider}, "
        f"{counted(timing.threads, 'thread')} ({clock}){inputs(timing)}; "
        f"{timing.same_level:.3f} with both at level all"
    )
    if timing.baseline is not None:
        line += f"; {baseline(timing.baseline)}"
    return f"{line}; {timing.note}" if timing.note else line


def baseline(saved: Baseline) -> str:
    """Return what a timing says beside a saved report."""
    if saved.ratio is None:
        why = "; ".join(printable(text, _SHAPES) for text in saved.differs)
        return f"not judged against {printable(saved.report)}: {why}"
    return (
        f"{saved.verdict} beside {printable(saved.report)}, where it was {saved.speedup:.3f}: "
        f"now / then = {saved.ratio:.3f} [{saved.low:.3f}, {saved.high:.3f}]"
    )


def throughput(found: Throughput) -> str:
    """Return the throughput of both models, and what it rests on."""
    return (
        f"{found.rewritten:.4g} runs per second in {found.streams} streams at once, the original "
        f"{found.original:.4g}; rewritten / original = {found.ratio:.3f} "
        f"[{found.low:.3f}, {found.high:.3f}], {counted(found.blocks, 'block')} each in "
        f"{counted(found.processes, 'process')} (wall time)"
    )


def gpu(timing: Timing) -> str:
    """Return what is known of the GPU, or why nothing is; "" on the CPU."""
    found = timing.gpu
    if found is None:
        return ""
    if found.missing:
        return found.missing
    versions = {
        "": found.name,
        "driver ": found.driver,
        "for CUDA up to ": found.driver_cuda,
        "CUDA ": found.cuda,
        "cuDNN ": found.cudnn,
    }
    said = [", ".join(f"{word}{value}" for word, value in versions.items() if value)]
    if found.before is not None and found.after is not None:
        clocks = (
            f"{figure(found.before.sm_mhz, 4)} MHz before, {figure(found.after.sm_mhz, 4)} after"
        )
        memory = figure(found.after.memory_mhz, 5)
        said.append(f"{clocks}, memory {memory} MHz")
    low = [reasons for reasons in found.throttled if reasons]
    if low:
        names = ", ".join(sorted({name for reasons in low for name in reasons}))
        processes = counted(len(found.throttled), "process")
        said.append(f"throttled in {len(low)} of {processes}: {names}")
    sides = (timing.original, timing.rewritten)
    said.append(" and ".join(figure(side.gpu_mib, 5) for side in sides) + " MiB")
    said.append(" and ".join(figure(side.gpu_mj, 4) for side in sides) + " mJ per run")
    return "; ".join(said)


def pairs(timing: Timing) -> str:
    """Return how many pairs were run, and where."""
    return (
        f"{counted(timing.pairs, 'pair')} in {counted(timing.sessions, 'session')} each of "
        f"{counted(timing.processes, 'process')}"
    )


def inputs(timing: Timing) -> str:
    """Return the timed shapes, as --input-shape takes them; "" for a model without inputs."""
    shapes = [f"{name}:{','.join(map(str, dims))}" for name, dims in timing.shapes.items()]
    return f", inputs {short(' '.join(shapes), _SHAPES)}" if shapes else ""


def difference(row: OutputParity) -> str:
    """Say what is wrong with an output that did not pass."""
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
    return f"{line}; {row.note}" if row.note else line
