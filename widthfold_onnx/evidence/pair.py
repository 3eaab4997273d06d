"""Two models to compare, and what their checks have in common.

A check takes a `Pair` and reads what it needs of it. What takes time is an attribute that is
computed when it is first read: the original runs once, the proof is made once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from widthfold_onnx.errors import NoKernelError, UnverifiedError, UsageError
from widthfold_onnx.evidence.declarations import without_wrong_outputs
from widthfold_onnx.evidence.findings import Findings
from widthfold_onnx.evidence.integers import run_on_integers
from widthfold_onnx.evidence.interface import Declaration, interface_differences
from widthfold_onnx.evidence.parity.comparison import ModelParity, model_parity
from widthfold_onnx.evidence.parity.original_runs import OriginalRuns, original_runs_of
from widthfold_onnx.evidence.parity.outputs import Outputs
from widthfold_onnx.evidence.parity.products import is_light
from widthfold_onnx.evidence.proof.program import Program
from widthfold_onnx.evidence.proof.proving import proof_report
from widthfold_onnx.evidence.timing.requirement import with_requirement
from widthfold_onnx.evidence.timing.speed import time_models
from widthfold_onnx.model.loader import LoadedModel
from widthfold_onnx.model.proto.walk import frozen, overridable
from widthfold_onnx.model.shapes.table import ShapeTable
from widthfold_onnx.options import Shapes, Sizes, VerifyOptions
from widthfold_onnx.progress import Step, progress, progress_to, silent
from widthfold_onnx.results import IntegerRun, Proof, Timing, Witness
from widthfold_onnx.runtime.environment import StartReadings
from widthfold_onnx.runtime.session import resolved


@dataclass(frozen=True)
class Unrun:
    """An original that is not run.

    Attributes:
        options: where it would run; with the provider as the caller named it if none was tried.
        reason: why it does not run; "" if that was not tried, as the interfaces differ.
        lacks_kernel: True if the runtime has no kernel for one of its nodes.
    """

    options: VerifyOptions
    reason: str = ""
    lacks_kernel: bool = False

    @property
    def is_unrunnable(self) -> bool:
        """True if it was tried and does not run, for another reason than a missing kernel."""
        return bool(self.reason) and not self.lacks_kernel


@dataclass(frozen=True, eq=False)
class Pair:
    """Two models to compare.

    Attributes:
        original: the model before.
        rewritten: the model after.
        options: what is checked, and how the caller wants models to run.
        start: readings of the machine before anything was run.
    """

    original: LoadedModel
    rewritten: LoadedModel
    options: VerifyOptions
    start: StartReadings

    @cached_property
    def runs(self) -> OriginalRuns | Unrun:
        """The runs of the original, none if the interfaces differ.

        Raises:
            UsageError: stored inputs or shapes that do not fit the model.
        """
        options = self.options
        if self._differences[0]:
            return Unrun(options)
        try:
            options = resolved(options)
            return original_runs_of(self.original, options)
        except UnverifiedError as error:
            return Unrun(options, str(error), isinstance(error, NoKernelError))

    @cached_property
    def interface(self) -> Findings:
        """Differences of the interfaces; what outputs declare is judged by the runs."""
        faults, declarations = self._differences
        if isinstance(self.runs, Unrun):
            return Findings(failures=tuple(faults))
        judged = [item.fault(self.runs.shapes_of(item.name)) for item in declarations]
        if any(judged):
            return Findings(failures=tuple(filter(None, judged)))
        return Findings(remarks=tuple(item.line for item in declarations))

    @cached_property
    def proof(self) -> Proof | None:
        """The proof.

        It is None if the original does not run and a proof is needed: then no fold is delivered.
        """
        runs = self.runs
        if self.options.needs_proof and isinstance(runs, Unrun) and runs.is_unrunnable:
            return None
        progress(Step("proof by evaluation"))
        try:
            programs = self._programs
        except UnverifiedError as error:
            return Proof(verdict="skipped", reason=str(error))
        return proof_report(*programs, self.options.input_shapes, next(iter(self.sizes), {}))

    @property
    def is_equal(self) -> bool:
        """True if the proof holds."""
        return self.proof is not None and self.proof.verdict == "equal"

    @cached_property
    def integers(self) -> IntegerRun | None:
        """The changed nodes on integers; None if the proof does not hold or nothing runs here."""
        runs, proof = self.runs, self.proof
        is_runnable = isinstance(runs, OriginalRuns) or runs.lacks_kernel
        if proof is None or not self.is_equal or not is_runnable:
            return None
        progress(Step("linear nodes that changed, on integers"))
        extents = {name: tuple(dims) for name, dims in proof.extents[0].items()}
        return run_on_integers(*self._programs, extents, runs.options)

    @cached_property
    def parity(self) -> ModelParity | None:
        """The comparison of outputs; None if the interfaces differ or the original does not run."""
        if isinstance(self.runs, Unrun) or self.interface.failures:
            return None
        return model_parity(self.runs, self.rewritten, is_proved=self.is_equal)

    @cached_property
    def witness(self) -> Witness | None:
        """An input set that shows the difference that the proof found.

        If no compared set does, the models run once more, at the extents at which the proof found
        it. None if these show nothing either, or nothing was compared.
        """
        proof, runs, parity = self.proof, self.runs, self.parity
        if proof is None or proof.verdict != "different" or parity is None or not parity.input_sets:
            return None
        assert isinstance(runs, OriginalRuns)
        shapes: Shapes = {name: tuple(dims) for name, dims in proof.extents[-1].items()}
        compared = [{name: x.shape for name, x in s.feeds.items()} for s in runs.inputs.sets]
        return parity.witness or (None if shapes in compared else self._witness_at(runs, shapes))

    def _witness_at(self, runs: OriginalRuns, shapes: Shapes) -> Witness | None:
        """Compare outputs at other extents, if that takes little time."""
        progress(Step("outputs where the proof found a difference"))
        options = replace(runs.options, input_shapes=(shapes,), inputs=(), seeds=1)
        try:
            if not is_light(self.original.proto, ShapeTable(self.original.proto, shapes)):
                return None
            with progress_to(silent):  # its steps would be named as those of the other sets
                other_runs = original_runs_of(self.original, options)
                return model_parity(other_runs, self.rewritten, is_proved=False).witness
        except (UnverifiedError, UsageError):  # they may not run there, or not with given values
            return None

    @cached_property
    def timing(self) -> Timing | str:
        """The times, or why there are none; "" if they are not asked for, or outputs differ."""
        options = self.runs.options
        if not options.timing or self.parity is None or self.parity.findings.verdict != "pass":
            return ""
        models, load = (self.original, self.rewritten), self.start.load
        try:
            timing = time_models(*models, options, self.sizes, load=load)
        except UnverifiedError as error:
            return f"not timed: {error}"
        return with_requirement(timing, options.fail_under)

    @property
    def sizes(self) -> Sizes:
        """Shapes of the inputs at which the original runs, the primary ones first."""
        return self.runs.inputs.sizes if isinstance(self.runs, OriginalRuns) else ()

    @property
    def returned(self) -> Outputs:
        """The outputs of the original on its first inputs, none if it is not run."""
        return self.runs.outputs[0] if isinstance(self.runs, OriginalRuns) else {}

    @cached_property
    def comparable(self) -> LoadedModel:
        """The original; with `freeze_weights`, inputs that became weights are weights here, too."""
        if not self.options.freeze_weights:
            return self.original
        inputs = {value.name for value in self.rewritten.proto.graph.input}
        names = overridable(self.original.proto) - inputs
        return replace(self.original, proto=frozen(self.original.proto, names))

    @cached_property
    def _differences(self) -> tuple[list[str], list[Declaration]]:
        options, protos = self.options, (self.original.proto, self.rewritten.proto)
        return interface_differences(*protos, options.freeze_weights, options.input_shapes)

    @cached_property
    def _programs(self) -> tuple[Program, Program]:
        """Both models as the proof takes them.

        Raises:
            UnverifiedError: the functions of one cannot be inlined.
        """
        old, new = (
            Program.of(without_wrong_outputs(model.proto, self.returned), model.folder)
            for model in (self.comparable, self.rewritten)
        )
        return old, new
