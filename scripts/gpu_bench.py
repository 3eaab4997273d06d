#!/usr/bin/env python3
"""Measure what folding is worth on a GPU, part by part and without a network.

usage: gpu_bench.py [--parts PART,...] [--provider cuda] [--dtype float16] [--out DIR]
                    [--budget 450] [--quick] [MODEL ...]
       gpu_bench.py --report DIR

Every run first compares one Conv with the CPU; a wrong or missing device ends it. The parts:

ceilings: bandwidth, peak and launch overhead
grid: layers of few channels in all forms and both layouts, and with padded channels
published: layers whose times others published, in the same way
torch: layers of grid, published and users, by PyTorch with cuDNN's own tuning; kernel names
users: 1-D layers that users report as slow: ISTFT, STFT, depthwise
models: MODELs, else models/ and three others, by `widthfold optimize` and `widthfold verify`

Every result is in DIR/results.jsonl as soon as it is there, with the raw samples, and a run takes
only what DIR lacks: the same command again continues after an interrupt or a spent budget of
seconds. A part that ended in an error is tried again. DIR is benchmarks/gpu/<device> by default.
Tables and pictures are made at the end of a run, or by --report.

Needs python3 with onnxruntime-gpu, onnx and numpy; torch and models need PyTorch and the whole
package, pictures need matplotlib. --provider cpu --quick shows that everything runs; its figures
say nothing.
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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # they need what may be missing
    from gpu.stage import Stage
    from gpu.watch import Watch

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "models"
FIRST = (
    "pitch_cnn",
    "basic-pitch__nmp",
    "swift-f0__model",
    "accelerated_features__xfeat",
    "luma_sr",
    "wide_signal",
)
"""Models that are measured before the others: time may be short. Three of them lie beside the
repository, if anywhere."""

NEEDED = ("numpy", "onnx", "onnxruntime")
PARTS = ("ceilings", "grid", "published", "torch", "users", "models")
KEPT = ("device", "provider", "onnxruntime", "quick")
"""What must be equal in all runs whose results share a folder."""


def main() -> int:
    arguments = _arguments()
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(f"gpu_bench: not installed: {', '.join(missing)}", file=sys.stderr)
        return 4
    sys.path.insert(0, str(ROOT))  # the package need not be installed
    from gpu.results import FILE, of, read

    from widthfold_onnx.errors import WidthfoldError

    if arguments.report is not None:
        if not of(read(arguments.report), "run"):
            print(f"gpu_bench: no results in {arguments.report / FILE}", file=sys.stderr)
            return 2
        _publish(arguments.report)
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
    _publish(folder)
    return 70 if faults else 0


def _measure(arguments: argparse.Namespace) -> tuple[Path, int]:
    """Return where the results lie, and how many parts ended by a fault of this script.

    Raises:
        UnverifiedError: the provider cannot be used.
        CheckFailedError: the device computes wrong.
        UsageError: the folder holds results of another device, provider, runtime or scale.
    """
    from gpu import device, grid, layers, published, rival, watch, wholes
    from gpu.results import Results
    from gpu.stage import FULL, QUICK, Stage

    from widthfold_onnx.options import Provider, VerifyOptions
    from widthfold_onnx.runtime.library import runtime_version
    from widthfold_onnx.runtime.session import resolved

    start = time.perf_counter()
    provider = resolved(VerifyOptions(provider=Provider(arguments.provider))).provider
    name = "cpu" if arguments.provider == "cpu" else watch.name() or "unknown"
    out = arguments.out or ROOT / "benchmarks" / "gpu" / re.sub(r"\W+", "-", name).lower()
    about = {
        "device": name,
        "provider": arguments.provider,
        "onnxruntime": runtime_version(),
        "quick": arguments.quick,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "parts": arguments.parts,
        "command": " ".join(["scripts/gpu_bench.py", *sys.argv[1:]]),
    }
    _check_folder(out, about)
    scale = QUICK if arguments.quick else FULL
    few = layers.paper(arguments.dtype, scale.layer_bytes)[: 1 if arguments.quick else None]
    users = layers.users(arguments.dtype, quick=arguments.quick)
    published_layers = published.published(arguments.dtype, quick=arguments.quick)
    if arguments.quick:  # some of each kind
        users, published_layers = users[2::2], published_layers[::2]
    models = arguments.models or _models(quick=arguments.quick)
    steps: dict[str, Callable[[Stage], None]] = {
        "ceilings": device.ceilings,
        "grid": lambda stage: grid.run_grid(stage, "grid", few, device.rate(out)),
        "published": lambda stage: grid.run_grid(
            stage, "published", published_layers, device.rate(out)
        ),
        "torch": lambda stage: rival.run_rival(stage, [*few, *published_layers, *users]),
        "users": lambda stage: grid.run_grid(stage, "users", users, device.rate(out)),
        "models": lambda stage: wholes.run_models(stage, models),
    }
    results = Results(out)
    with tempfile.TemporaryDirectory() as folder, watch.Watch() as seen:
        stage = Stage(provider, Path(folder), results, scale, start + arguments.budget)
        results.add("run", **about)
        device.check(stage)
        faults = _take(stage, {part: steps[part] for part in arguments.parts}, seen)
        results.add("end", seconds=round(time.perf_counter() - start, 1))
    results.close()
    return out, faults


def _check_folder(out: Path, about: Mapping[str, Any]) -> None:
    """Refuse a folder whose results are of something else.

    Raises:
        UsageError: they are.
    """
    from gpu.results import of, read

    from widthfold_onnx.errors import UsageError

    for run in of(read(out), "run"):
        for key in KEPT:
            if run[key] != about[key]:
                raise UsageError(f"{out} holds results of {key} {run[key]}; choose another --out")


def _take(stage: Stage, steps: Mapping[str, Callable[[Stage], None]], seen: Watch) -> int:
    """Take the steps; return how many ended by a fault.

    A fault is printed, and costs no other part: time on a device is scarce.
    """
    from widthfold_onnx.errors import WidthfoldError

    faults = 0
    for part, step in steps.items():
        print(f"gpu_bench: {part}, {stage.seconds_left:.0f} s left", file=sys.stderr, flush=True)
        try:
            step(stage)
        except WidthfoldError as error:
            stage.results.add(part, reason=str(error))
        except Exception as error:
            traceback.print_exc()
            stage.results.add(part, reason=f"a fault of gpu_bench: {error!r}")
            faults += 1
        stage.results.add("state", during=part, **seen.take())
    return faults


def _models(*, quick: bool) -> list[Path]:
    """Return the models to measure."""
    first = [folder / f"{name}.onnx" for name in FIRST for folder in (ROOT / "models", SHARED)]
    files = [*filter(Path.is_file, first), *sorted((ROOT / "models").glob("*.onnx"))]
    return list(dict.fromkeys(files))[: 1 if quick else None]


def _publish(folder: Path) -> None:
    """Write table.md and pictures, also of a run that was cut off behind its first row."""
    from gpu.results import latest, read
    from gpu.tables import sections

    rows = latest(read(folder))
    text = "\n".join(section.markdown() for section in sections(rows))
    (folder / "table.md").write_text(text, encoding="utf-8")
    print(text)
    if importlib.util.find_spec("matplotlib") is None:
        print("gpu_bench: no pictures without matplotlib", file=sys.stderr)
        return
    from gpu.plots import draw

    draw(rows, folder)


def _parts(text: str) -> list[str]:
    """Read names of parts; they are taken in the order of `PARTS`."""
    names = text.split(",")
    if unknown := set(names) - set(PARTS):
        raise argparse.ArgumentTypeError(f"no such part: {', '.join(sorted(unknown))}")
    return [part for part in PARTS if part in names]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--parts", type=_parts, default=list(PARTS), help=f"of {','.join(PARTS)}")
    parser.add_argument("--provider", choices=["cuda", "tensorrt", "cpu"], default="cuda")
    parser.add_argument("--dtype", choices=["float16", "float32"], default="float16")
    parser.add_argument("--quick", action="store_true", help="tiny layers, one model")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--budget", type=float, default=450.0, help="seconds for everything")
    parser.add_argument("--report", type=Path, metavar="DIR", help="only make table and pictures")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
