"""Whole models compared in this process, as `verify` does around the proof, and small ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from onnx import parser

from widthfold_onnx.evidence.findings import Findings
from widthfold_onnx.evidence.pair import Pair, Unrun
from widthfold_onnx.evidence.parity.comparison import ModelParity, model_parity
from widthfold_onnx.model.loader import load
from widthfold_onnx.options import Provider, Sizes, VerifyOptions
from widthfold_onnx.progress import Listener, progress_to, silent
from widthfold_onnx.results import OutputParity, Verdict
from widthfold_onnx.runtime.environment import StartReadings

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
OPTIONS = VerifyOptions(provider=Provider.CPU, seeds=3, truth_work=0)
LINE = "g (float[N, 4] x) => (float[N, 4] y)"
SCALED = LINE + " <float w = {%s}> { y = Mul(x, w) }"


@dataclass(frozen=True)
class Comparison:
    """The parity of two models, and where they ran."""

    parity: ModelParity
    provider: Provider
    sizes: Sizes = ()
    missing_kernel: str = ""

    @property
    def verdict(self) -> Verdict:
        return self.parity.findings.verdict

    @property
    def reasons(self) -> tuple[str, ...]:
        return self.parity.findings.reasons

    @property
    def outputs(self) -> tuple[OutputParity, ...]:
        return tuple(self.parity.outputs)

    @property
    def input_sets(self) -> int:
        return self.parity.input_sets

    @property
    def saturates_further(self) -> bool:
        return self.parity.saturates_further


def compare_models(
    original: Path,
    rewritten: Path,
    options: VerifyOptions,
    *,
    is_proved: bool = False,
    send: Listener = silent,
) -> Comparison:
    pair = Pair(load(original), load(rewritten), options, StartReadings())
    with progress_to(send):
        runs, findings = pair.runs, pair.interface
        provider = runs.options.provider
        if isinstance(runs, Unrun):
            findings += Findings(doubts=tuple(filter(None, [runs.reason])))
            kernel = runs.reason if runs.lacks_kernel else ""
            return Comparison(ModelParity(findings), provider, missing_kernel=kernel)
        if findings.failures:
            return Comparison(ModelParity(findings), provider)
        parity = model_parity(runs, pair.rewritten, is_proved=is_proved)
    parity = replace(parity, findings=findings + parity.findings)
    return Comparison(parity, provider, runs.inputs.sizes)


def stored(folder, name, text):
    path = folder / name
    path.write_bytes(parser.parse_model(HEAD + text).SerializeToString())
    return path


def compared(folder, original, rewritten, options=OPTIONS, **arguments):
    paths = stored(folder, "a.onnx", original), stored(folder, "b.onnx", rewritten)
    return compare_models(*paths, options, **arguments)
