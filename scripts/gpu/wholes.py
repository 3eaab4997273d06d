"""Part 5: whole models by `--factor auto`, in both layouts, against the original at its best.

This part needs all that the package needs, not only its mathematics.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpu.stage import Stage, ratio
from widthfold_onnx.options import Provider

NEEDED = ("msgspec", "onnx_ir", "platformdirs", "scipy")
"""What the package imports to optimize a model, beside numpy and onnx."""


def run_models(stage: Stage, models: Sequence[Path]) -> None:
    """Optimize and time the models, or as many as there is time for."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        stage.results.add("models", reason=f"the package needs {', '.join(missing)}")
        return
    layouts = (False, True) if stage.provider is Provider.CUDA else (False,)
    cases = [(path, last) for path in models for last in layouts]
    longest = 0.0
    for done, (path, last) in enumerate(cases):
        before = stage.left
        if before <= longest:  # a search cannot be stopped, so the next one must not begin
            stage.results.add("models", unmeasured=len(cases) - done, reason="no time was left")
            return
        _model(stage, path, stage.options(last=True) if last else {})
        longest = max(longest, before - stage.left)


def _model(stage: Stage, path: Path, options: dict[str, str]) -> None:
    from widthfold_onnx import FoldOptions, SearchOptions, VerifyOptions, WidthfoldError, optimize
    from widthfold_onnx.evidence.timing.contest import contest

    seconds = stage.scale.model_seconds
    search = SearchOptions(provider=stage.provider, provider_options=options, time_budget=seconds)
    prove = VerifyOptions(
        provider=stage.provider,
        provider_options=options,
        seeds=1,
        thorough=False,
        timing=False,
    )
    timed = VerifyOptions(provider=stage.provider, time_budget=seconds / 2)
    out = stage.folder / "folded.onnx"
    about: dict[str, Any] = {"model": path.stem, "options": options}
    try:
        report = optimize(path, out, FoldOptions(), prove, search)
        found = report.search
        assert found is not None  # it was asked for auto
        whole, shapes = found.whole, {name: tuple(dims) for name, dims in found.shapes.items()}
        about |= {
            "convs": len(report.sites),
            "layers": found.layers,
            "left": found.left,
            "folded": report.summary.folded,
            "written": report.written is not None,
            "search": None if whole is None else [whole.ratio, whole.low, whole.high],
            "shapes": found.shapes,
        }
        if report.written is None or not report.summary.folded:
            stage.results.add("models", **about)
            return
        about["transposes"] = [stage.load(model, options).transposes for model in (path, out)]
        against = contest(path, out, timed, shapes)
    except WidthfoldError as error:
        stage.results.add("models", **about, error=str(error))
        return
    settings = [str(setting) for setting in against.settings]
    stage.results.add("models", **about, settings=settings, **ratio(against.pairing))
