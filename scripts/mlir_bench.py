"""Time folds of linalg operations against the same modules unfolded, both compiled by IREE.

    pip install -e ".[mlir]"
    scripts/mlir_bench.py: print the table of docs/mlir.md, of the processor
    scripts/mlir_bench.py --targets: print the table of other targets, which only compile
    scripts/mlir_bench.py --only NHWC: time the cases whose name holds a text

Each fold is timed in alternating runs with the module and with a copy of it, in one process, in
processor time of its one thread (`benchmark/one_process.py`). Before, both are compared on
integers, bitwise.
"""

from __future__ import annotations

import argparse
import platform
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from benchmark.one_process import paired
from mlir_module import compiled, loaded, module, of_integers

from widthfold_onnx.mlir.files import fold_file, fold_module
from widthfold_onnx.options import AxisName, FoldOptions

ROOT = Path(__file__).resolve().parents[1]
SAME = ((1, 1), (1, 1))

Array = npt.NDArray[Any]
Case = tuple[str, list[int]]
"""A module and the shape of its data."""


def integers(*shape: int) -> Array:
    return np.random.default_rng(0).integers(-4, 5, shape).astype(np.float32)


def conv(kind: str, data: list[int], *weight: int, padded: bool = False) -> Case:
    pads = SAME if padded else ((0, 0), (0, 0))
    return module(kind, data, integers(*weight), pads=pads), data


def product(rows: int, inputs: int, outputs: int) -> Case:
    return module("matmul", [rows, inputs], integers(inputs, outputs)), [rows, inputs]


def imported(name: str, data: list[int]) -> Case:
    """A model as IREE imports it: nothing in it is folded."""
    with tempfile.TemporaryDirectory() as folder:
        model, out = Path(folder, name), Path(folder, "out.mlir")
        onnx.save(of_integers(ROOT / "models" / name), model)
        fold_file(model, out, FoldOptions(factor=2, skip=("*",)))
        return out.read_text(), data


NHWC, NCHW, NCW = "conv_2d_nhwc_hwcf", "conv_2d_nchw_fchw", "conv_1d_ncw_fcw"
CASES: dict[str, Callable[[], Case]] = {
    "paper's appendix: 5x1, 1 -> 1, 32x64, NHWC": lambda: conv(NHWC, [1, 32, 64, 1], 5, 1, 1, 1),
    "the same, 516x1024, NHWC": lambda: conv(NHWC, [1, 516, 1024, 1], 5, 1, 1, 1),
    "the same, 516x1024, NCHW": lambda: conv(NCHW, [1, 1, 516, 1024], 1, 1, 5, 1),
    "3x3, 1 -> 16, 128x128, NHWC": lambda: conv(NHWC, [1, 128, 128, 1], 3, 3, 1, 16, padded=True),
    "3x3, 1 -> 16, 128x128, NCHW": lambda: conv(NCHW, [1, 1, 128, 128], 16, 1, 3, 3, padded=True),
    "3x3, 1 -> 1, 16 of 64x64, NCHW": lambda: conv(NCHW, [16, 1, 64, 64], 1, 1, 3, 3, padded=True),
    "9, 1 -> 8, 16384, NCW": lambda: conv(NCW, [1, 1, 16392], 8, 1, 9),
    "product 65536x8 by 8x8": lambda: product(65536, 8, 8),
    "product 65536x3 by 3x4": lambda: product(65536, 3, 4),
    "models/chain.onnx, 4 layers": lambda: imported("chain.onnx", [16, 1, 64, 64]),
    "the same, `--axis height`": lambda: imported("chain.onnx", [16, 1, 64, 64]),
    "models/pitch_cnn.onnx, 4 layers": lambda: imported("pitch_cnn.onnx", [1, 1, 16384]),
}
FORMS = {
    "factor 2": (2, False),
    "factor 4": (4, False),
    "factor 8": (8, False),
    "factor 8, `--groups`": (8, True),
}
TARGETS = {
    "cuda": ("--iree-cuda-target=sm_80", "ptx", r"mma\.sync|wmma\.mma"),
    "rocm": ("--iree-rocm-target=gfx942", "rocmasm", r"v_mfma"),
}
"""By backend: the chip, the suffix of its code, and what its matrix instructions are called."""


HALVES: dict[str, tuple[str, list[int], tuple[int, ...], tuple[tuple[int, int], ...]]] = {
    "5x1, 1 -> 1, 32x64, NHWC": (NHWC, [1, 32, 64, 1], (5, 1, 1, 1), ((0, 0), (0, 0))),
    "3x3, 1 -> 16, 128x128, NHWC": (NHWC, [1, 128, 128, 1], (3, 3, 1, 16), SAME),
    "product 65536x8 by 8x8": ("matmul", [65536, 8], (8, 8), ()),
}
"""Operation, shape of the data, weight and pads of what is compiled for them."""


def folded(text: str, factor: int, *, groups: bool, axis: AxisName = AxisName.AUTO) -> str | None:
    """The folded module; None if no layer is folded."""
    options = FoldOptions(factor=factor, mix_samples=True, axis=axis)
    result, sites = fold_module(text, options, groups=groups)
    return result if any(site.status == "folded" for site in sites) else None


def timed(name: str, budget: float) -> str:
    """Return one line of the table of the processor."""
    text, shape = CASES[name]()
    x = integers(*shape)
    code, cells, controls = compiled(text), [], []
    (original, result), (copy, _) = loaded(code, x), loaded(code, x)
    expected, before = result(), 0.0
    ratios: dict[str, str] = {}
    axis = AxisName.HEIGHT if "height" in name else AxisName.AUTO
    for factor, groups in FORMS.values():
        other = folded(text, factor, groups=groups, axis=axis)
        if other is None:
            cells.append("not folded")
            continue
        if other not in ratios:
            rival, numbers = loaded(compiled(other), x)
            if not np.array_equal(numbers(), expected):
                raise SystemExit(f"{name} by {factor} computes something else")
            pair = paired(
                *(ignoring_rounds(run) for run in (original, rival, copy)),
                budget=budget,
                clock=time.thread_time_ns,
            )
            before = float(np.median(pair.samples[0])) * 1e6
            controls.append(pair.control)
            ratios[other] = f"{pair.ratio:.2f}x [{pair.low:.2f}, {pair.high:.2f}]"
        cells.append(ratios[other])
    return f"| {name} | {before:.0f} | {' | '.join(cells)} | {1 + max(controls):.2f} |"


def ignoring_rounds(call: Callable[[], object]) -> Callable[[int], object]:
    return lambda count: call()


def targets() -> Iterator[str]:
    """The lines of the table of targets that only compile: their matrix instructions."""
    for name, (kind, data, weight, pads) in HALVES.items():
        text = module(kind, data, np.ones(weight, np.float16), pads=pads, sums="f32")
        for backend, (chip, suffix, pattern) in TARGETS.items():
            counts = [
                str(instructions(each, backend, chip, suffix, pattern))
                for each in (text, folded(text, 8, groups=False))
            ]
            yield f"| {name} | {backend} {chip.split('=')[1]} | {' | '.join(counts)} |"


def instructions(text: str | None, backend: str, chip: str, suffix: str, pattern: str) -> int:
    assert text is not None
    with tempfile.TemporaryDirectory() as folder:
        compiled(text, backend, chip, f"--iree-hal-dump-executable-files-to={folder}")
        files = Path(folder).glob(f"*.{suffix}")
        return sum(len(re.findall(pattern, path.read_text())) for path in files)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--targets", action="store_true", help="compile for others, time nothing")
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    parser.add_argument("--budget", type=float, default=0.6, help="seconds for each pair")
    arguments = parser.parse_args()
    if arguments.targets:
        print("| layer, f16 with sums in f32 | target | as it is | factor 8 |\n|---|---|---|---|")
        for line in targets():
            print(line, flush=True)
        return
    print(f"| layer | IREE µs | {' | '.join(FORMS)} | A/A control |")
    print("|---|---|" + "---|" * len(FORMS) + "---|")
    for name in CASES:
        if arguments.only in name:
            print(timed(name, arguments.budget), flush=True)
    print(f"\nIREE {version('iree-base-compiler')}, {platform.machine()}, one thread")


if __name__ == "__main__":
    main()
