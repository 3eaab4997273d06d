"""Offer the fold as a pass of Olive, for the config of `olive run` (docs/pipelines.md)."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_type_hints

import onnx
from olive.hardware import AcceleratorSpec, Device  # noqa: TID251 - only this module does
from olive.logging import get_olive_logger  # noqa: TID251
from olive.model import ONNXModelHandler  # noqa: TID251
from olive.model.utils import resolve_onnx_path  # noqa: TID251
from olive.passes import Pass  # noqa: TID251
from olive.passes.onnx import common  # noqa: TID251
from olive.passes.pass_config import BasePassConfig, PassConfigParam  # noqa: TID251

from widthfold_onnx.api import check_delivered
from widthfold_onnx.errors import WidthfoldError
from widthfold_onnx.evidence.delivery import IntoFile
from widthfold_onnx.keywords import options_from
from widthfold_onnx.model.loader import load
from widthfold_onnx.options import (
    DeliveryOptions,
    FoldOptions,
    Provider,
    SearchOptions,
    Shapes,
    Sizes,
)
from widthfold_onnx.pipeline import optimize
from widthfold_onnx.progress import Step, progress_to
from widthfold_onnx.reports.console import show
from widthfold_onnx.reports.described import described
from widthfold_onnx.results import OptimizeReport
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.runtime.settings import level_in

DEVICES = {Device.GPU: Provider.CUDA}
"""Provider by device where the accelerator names none, as in Olive; any other device: the CPU."""

LEVELS = {Level.DISABLED: 0, Level.EXTENDED: 2, Level.ALL: 99}
"""Optimization levels of ONNX Runtime, as Olive passes them on."""


class WidthFold(Pass):  # type: ignore[misc] # mypy does not read Olive
    """Folds layers of an ONNX model where that was measured to be faster, or by a fixed factor.

    Its parameters are Olive's parameters for external data, and the options of `FoldOptions` and
    `SearchOptions`; the provider is the provider of Olive's accelerator.
    """

    @staticmethod
    def is_accelerator_agnostic(accelerator_spec: AcceleratorSpec) -> bool:
        """Deny it: a fold that pays on one provider is a loss on another."""
        return False

    @classmethod
    def _default_config(cls, accelerator_spec: AcceleratorSpec) -> dict[str, PassConfigParam]:
        parameters = {
            name: PassConfigParam(
                type_=Shapes | Sizes if hint == Sizes else hint,  # one assignment needs no list
                default_value=getattr(options, name),
                description=f"See widthfold_onnx.{type(options).__name__}.",
            )
            for options in (FoldOptions(), SearchOptions())
            for name, hint in get_type_hints(type(options)).items()
            if name != "provider"
        }
        factor = PassConfigParam(
            type_=int | Literal["auto"],
            default_value="auto",
            description="Positions per channel that become channels; auto: chosen by measurement.",
        )
        return {**common.get_external_data_config(), **parameters, "factor": factor}

    def _run_for_config(
        self, model: ONNXModelHandler, config: type[BasePassConfig], output_model_path: str
    ) -> ONNXModelHandler:
        out = resolve_onnx_path(output_model_path, Path(model.model_path).name)
        options = {
            name: value
            for name, value in config.model_dump().items()
            if value is not None and (name, value) != ("factor", "auto")
        }
        spec = self.accelerator_spec
        provider = spec.execution_provider or DEVICES.get(spec.accelerator_type, Provider.CPU)
        options["provider"] = Provider(provider)
        with TemporaryDirectory() as folder:
            new_file = Path(folder, Path(out).name)
            try:
                report = _fold(Path(model.model_path), new_file, options)
            except WidthfoldError as error:
                # After most other errors Olive ends well, and keeps the failure in its cache.
                raise ValueError(f"widthfold: {error}") from error
            result = common.model_proto_to_olive_model(onnx.load(new_file), out, options)
        result.inference_settings = _settings(model, report)
        return result


def _fold(model: Path, out: Path, options: dict[str, Any]) -> OptimizeReport:
    """Fold a file into another one, or copy it where nothing folds, and print the report."""
    fold, search = options_from(FoldOptions, options), options_from(SearchOptions, options)
    verify = search.to(DeliveryOptions)
    log = get_olive_logger()

    def say(step: Step) -> None:
        log.debug("widthfold: %s", step.text)

    with progress_to(say):
        loaded = load(model)
        target = IntoFile(loaded, out, verify, search.files)
        report = optimize(loaded, fold, search, target).report
    show(described(report))
    check_delivered(report)
    return report


def _settings(model: ONNXModelHandler, report: OptimizeReport) -> dict[str, Any] | None:
    """Return the settings of the model, with the level at which the folded model is fastest."""
    settings: dict[str, Any] = model.inference_settings or {}
    if report.search is None or not report.search.folded_setting:
        return settings or None
    level = LEVELS[level_in(report.search.folded_setting)]
    options = {**settings.get("session_options", {}), "graph_optimization_level": level}
    return {**settings, "session_options": options}
