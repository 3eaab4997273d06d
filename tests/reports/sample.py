"""A result of `verify` as a run gives it, built by hand; and one whose every name is hostile."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from widthfold_onnx.algebra.axis import ConvAxis, FoldedAxis, fold_axis
from widthfold_onnx.results import (
    AxisPattern,
    Environment,
    FoldReport,
    Gpu,
    IntegerRun,
    NodeTime,
    OutputParity,
    Proof,
    Side,
    Timing,
    VerifyReport,
    Witness,
    WorstElement,
)

HOSTILE = (
    "\x1b[2J<script>alert(1)</script>]]>|`$x^2$`@you\u202e--> ::error::\n::%0A,a:b\uffff&amp;\"'名"
)
"""What a model may call its nodes."""


def pattern(name: str, axis: ConvAxis, out_tile: int, in_tile: int) -> AxisPattern:
    folded = fold_axis(axis, out_tile, in_tile)
    assert isinstance(folded, FoldedAxis)
    return AxisPattern(
        axis=name,
        in_tile=in_tile,
        out_tile=out_tile,
        blocked=False,
        in_length=folded.extended_length,
        original_kernel=axis.kernel,
        kernel=folded.kernel,
        stride=folded.stride,
        taps=[tuple(map(int, t)) for t in zip(*folded.taps, strict=True)],
    )


def output(name: str, level: str, error: float = 3e-7, *, passed: bool = True) -> OutputParity:
    return OutputParity(
        name=name,
        dtype="float32",
        level=level,
        max_abs=error * 3,
        mean_abs=error / 9,
        max_rel=error,
        nonfinite_match=True,
        worst=WorstElement(index=[0, 3, 8, 8], original=0.7, rewritten=0.7 + error),
        movement=2.1e-7,
        tolerance=1e-5,
        passed=passed,
    )


def folded(name: str, axes: list[AxisPattern]) -> FoldReport:
    return FoldReport(
        node=name,
        form="width by 8, view blocked",
        channels="8 -> 8, folded 64 -> 64",
        axes=axes,
    )


EQUAL = Proof(
    verdict="equal",
    values=259,
    error_bits=61,
    primes=[8388593, 8388587],
    functions=["Loop", "STFT"],
    extents=[{"audio": [1, 43844, 1]}, {"audio": [3, 87689, 1]}],
)
DIFFERENT = Proof(
    verdict="different",
    reason="note (Conv contour/conv_1): 3 of 96 elements differ, the first at [0, 1, 7, 2], "
    "with audio [1, 43844, 1]",
)
NOT_PROVABLE = Proof(
    verdict="not provable",
    reason="note (Conv contour/conv_1): 96 of 96 elements differ, the first at [0, 0, 0, 0]; the "
    "original multiplies constants, which the new model has rounded, with audio [1, 43844, 1]",
)
SKIPPED = Proof(
    verdict="skipped",
    reason="the original cannot be evaluated: Conv contour/conv_1 needs too much memory",
)


def side(median: float, names: list[str], seed: int) -> Side:
    rng = np.random.default_rng(seed)
    samples = (median * np.exp(np.abs(rng.normal(0, 0.03, 500)))).round(5).tolist()
    p50, p90, p99 = np.percentile(samples, [50, 90, 99]).tolist()
    times = np.geomspace(400, 3, len(names)).round(2).tolist()
    return Side(
        level="all",
        median_ms=p50,
        p90=p90,
        p99=p99,
        samples_ms=np.reshape(samples, (5, 2, 50)).tolist(),
        outliers=17,
        load_ms=12.5,
        first_ms=2 * median,
        file_bytes=int(median * 123_456),
        providers={"CPUExecutionProvider": len(names)},
        fallbacks=[],
        nodes=[
            NodeTime(name=n, op="Conv", provider="CPUExecutionProvider", us=t, reached=2 / t)
            for n, t in zip(names, times, strict=True)
        ],
    )


def timing() -> Timing:
    layers = [f"StatefulPartitionedCall/model/conv2d_{i}/Conv2D__{i}" for i in range(12)]
    return Timing(
        provider="CPUExecutionProvider",
        threads=1,
        clock="thread",
        pairs=240,
        processes=5,
        sessions=4,
        speedup=1.702,
        low=1.691,
        high=1.713,
        control=0.021,
        converged=True,
        crowded=False,
        same_level=1.68,
        limits={"bytes of a copy of 256 KiB": 7.34e10, "operations on float": 1.5e11},
        original=side(1.94, layers, 1),
        rewritten=side(1.14, [*layers[:9], "widthfold/reshape_1", "widthfold/reshape_2"], 2),
        verdict="faster",
    )


def passing() -> VerifyReport:
    three = ConvAxis(length=64, kernel=3, pad_begin=1, pad_end=1)
    five = ConvAxis(length=60, kernel=5, stride=3, pad_begin=2, pad_end=2)
    return VerifyReport(
        original="pitch_cnn.onnx",
        rewritten="pitch_cnn.folded.onnx",
        outputs=[output(n, level) for n in ("note", "onset") for level in ("disabled", "all")],
        proof=EQUAL,
        integers=IntegerRun(verdict="exact", nodes=6),
        folds=[
            folded("contour/conv_1/Conv", [pattern("width", three, 8, 8)]),
            folded("contour/conv_2/Conv", [pattern("height", five, 4, 12)]),
        ],
        timing=timing(),
        verdict="pass",
        reasons=[],
        input_sets=12,
        environment=Environment(
            widthfold="0.1.0",
            onnx="1.23.2",
            onnxruntime="1.31.1",
            python="3.11.7",
            provider="cpu",
            provider_options={},
            session_options={},
            u8s8_error=None,
            machine="Linux x86_64 Some Processor",
            cores=2,
            load_before=0.41,
            load_after=1.02,
            mhz_before=2600.0,
            mhz_after=None,
            command="widthfold verify pitch_cnn.onnx pitch_cnn.folded.onnx --threads 1",
        ),
    )


def failing(name: str = "note", node: str = "contour/conv_1/Conv") -> VerifyReport:
    """One output differs, the proof says where, and the record of a node cannot be read."""
    report = passing()
    first, second = report.folds
    return replace(
        report,
        outputs=[output(name, "disabled", 7e-3, passed=False), *report.outputs[1:]],
        proof=replace(DIFFERENT, reason=f"{node}: 3 of 96 elements differ"),
        integers=None,
        folds=[
            replace(first, node=node),
            replace(second, form="unreadable", channels="", axes=[]),
        ],
        verdict="fail",
        reasons=[f"output {name} differs", f"{node} differs"],
        witness=Witness(
            input_set="seed 0, normal",
            shapes={"audio": [1, 43844, 1]},
            output=output(name, "disabled", 7e-3, passed=False),
        ),
    )


def hostile() -> VerifyReport:
    """Every string that can come from a model or the system is `HOSTILE`."""
    report = failing(HOSTILE, HOSTILE)
    assert report.timing is not None
    assert report.witness is not None
    nodes = [NodeTime(name=HOSTILE, op=HOSTILE, provider=HOSTILE, us=9.0)]
    before = replace(
        report.timing.original,
        nodes=nodes,
        fallbacks=nodes,
        level=HOSTILE,
        providers={HOSTILE: 1},
    )
    return replace(
        report,
        original=HOSTILE,
        rewritten=HOSTILE,
        outputs=[replace(row, name=HOSTILE, dtype=HOSTILE, note=HOSTILE) for row in report.outputs],
        proof=replace(DIFFERENT, reason=HOSTILE, functions=[HOSTILE], extents=[{HOSTILE: [1]}]),
        integers=IntegerRun(verdict="different", reason=HOSTILE),
        folds=[replace(f, node=HOSTILE, channels=HOSTILE, form=HOSTILE) for f in report.folds],
        timing=replace(
            report.timing, original=before, note=HOSTILE, provider=HOSTILE, gpu=Gpu(name=HOSTILE)
        ),
        reasons=[HOSTILE],
        witness=replace(report.witness, input_set=HOSTILE, shapes={HOSTILE: [1]}),
        environment=replace(report.environment, machine=HOSTILE, command=HOSTILE, provider=HOSTILE),
    )
