#!/usr/bin/env python3
"""Measure what folding is worth on a GPU: one command, 450 s unless said otherwise, no network.

usage: gpu_bench.py [--provider cuda] [--quick] [--out DIR] [--budget 450] [MODEL ...]
       gpu_bench.py --report DIR

Needs python3 with onnxruntime-gpu, onnx and numpy. With torch there is an independent reference,
with rich a table on the terminal, with matplotlib pictures; whole models need what the package
needs (msgspec, onnx_ir, platformdirs, scipy). Parts:

1 one Conv on the device against the CPU; a wrong or missing device ends the run
2 bandwidth, peak, launch overhead, and by how much identical models differ
3 a grid of layers, each in all forms, in both layouts
4 tall and narrow matrix products, folded and not
5 whole models by --factor auto: models/, and the real ones beside the repository, or MODEL
6 the layers of part 3 through PyTorch and cuDNN's own tuning, with the names of kernels
7 table and pictures

Every result is in DIR/results.jsonl as soon as it is there, with the raw samples; --report makes
table.md and the pictures from such a file. DIR is benchmarks/gpu/<device> unless given.
--provider cpu --quick shows that everything runs; its figures say nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import platform
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # they need what may be missing
    from gpu.stage import Stage
    from gpu.watch import Watch

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "models"
NEEDED = ("numpy", "onnx", "onnxruntime")
FIRST = ("pitch_cnn", "basic-pitch__nmp", "luma_sr", "swift-f0__model", "wide_signal")
"""Models that are measured before the others: time may be short."""

SHARES = {"grid": 0.45, "gemm": 0.1, "models": 0.65}
"""Share of the time left that each of these parts may take. PyTorch comes last and takes the rest:
it can stop soon, and its memory and its profiler disturb nothing there."""


def main() -> int:
    arguments = _arguments()
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(f"gpu_bench: not installed: {', '.join(missing)}", file=sys.stderr)
        return 4
    sys.path.insert(0, str(ROOT))  # the package need not be installed
    from gpu.publish import publish
    from gpu.results import FILE, of, read

    from widthfold_onnx.errors import WidthfoldError

    if arguments.report is not None:
        if not of(read(arguments.report), "run"):
            print(f"gpu_bench: no results in {arguments.report / FILE}", file=sys.stderr)
            return 2
        publish(arguments.report)
        return 0
    absent = [str(path) for path in arguments.models if not path.is_file()]
    if absent:
        print(f"gpu_bench: no such file: {', '.join(absent)}", file=sys.stderr)
        return 2
    try:
        folder, faults = _measure(arguments)
    except WidthfoldError as error:
        print(f"gpu_bench: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"gpu_bench: {error}", file=sys.stderr)
        return 2
    publish(folder)
    return 70 if faults else 0


def _measure(arguments: argparse.Namespace) -> tuple[Path, int]:
    """Parts 1 to 6: where the results lie, and how many parts ended by a fault of this script.

    Raises:
        UnverifiedError: the provider cannot be used.
        CheckFailedError: the device computes wrong.
    """
    from gpu import device, grid, products, rival, watch, wholes
    from gpu.results import Results
    from gpu.stage import FULL, QUICK, Stage

    from widthfold_onnx.options import Provider, VerifyOptions
    from widthfold_onnx.runtime.session import resolved, runtime_version

    start = time.perf_counter()
    name = "cpu" if arguments.provider == "cpu" else watch.name() or "unknown"
    out = arguments.out or ROOT / "benchmarks" / "gpu" / re.sub(r"\W+", "-", name).lower()
    scale = QUICK if arguments.quick else FULL
    chosen = grid.layers(scale.layer_bytes)[: scale.layers]
    models = (arguments.models or _models(real=not arguments.quick))[: scale.models]
    steps: dict[str, Callable[[Stage], None]] = {
        "ceilings": device.ceilings,
        "grid": lambda part: grid.run_grid(part, chosen, device.rate(out)),
        "gemm": products.run_products,
        "models": lambda part: wholes.run_models(part, models),
        "torch": lambda part: rival.run_rival(part, chosen),
    }
    provider = resolved(VerifyOptions(provider=Provider(arguments.provider))).provider
    results = Results(out)
    with tempfile.TemporaryDirectory() as folder, watch.Watch() as seen:
        stage = Stage(provider, Path(folder), results, scale, start + arguments.budget)
        results.add(
            "run",
            device=name,
            provider=arguments.provider,
            onnxruntime=runtime_version(),
            python=platform.python_version(),
            quick=arguments.quick,
            budget_s=arguments.budget,
            date=time.strftime("%Y-%m-%d", time.gmtime()),
            command=" ".join(["scripts/gpu_bench.py", *sys.argv[1:]]),
        )
        device.check(stage)
        faults = _take(stage, steps, seen)
        results.add("end", seconds=round(time.perf_counter() - start, 1))
    results.close()
    return out, faults


def _take(stage: Stage, steps: Mapping[str, Callable[[Stage], None]], seen: Watch) -> int:
    """Take the steps, each in its share of the time; how many ended by a fault.

    A fault is printed, and costs no other part: time on a device is scarce.
    """
    from widthfold_onnx.errors import WidthfoldError

    faults = 0
    for part, step in steps.items():
        print(f"gpu_bench: {part}, {stage.left:.0f} s left", file=sys.stderr, flush=True)
        try:
            step(stage.until(SHARES.get(part, 1.0) * stage.left))
        except WidthfoldError as error:
            stage.results.add(part, reason=str(error))
        except Exception as error:
            traceback.print_exc()
            stage.results.add(part, reason=f"a fault of gpu_bench: {error!r}")
            faults += 1
        stage.results.add("state", during=part, **seen.take())
    return faults


def _models(*, real: bool) -> list[Path]:
    folders = [ROOT / "models", *([SHARED] if real else [])]
    found = [path for folder in folders for path in sorted(folder.glob("*.onnx"))]
    order = {name: place for place, name in enumerate(FIRST)}
    return sorted(found, key=lambda path: order.get(path.stem, len(order)))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--provider", choices=["cuda", "tensorrt", "cpu"], default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny layers, one model")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--budget", type=float, default=450.0, help="seconds for everything")
    parser.add_argument("--report", type=Path, metavar="DIR", help="only make table and pictures")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
