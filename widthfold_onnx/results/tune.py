"""Results of `tune`: the layers of every model and what is known of them."""

from __future__ import annotations

from widthfold_onnx.results.base import Report, Result

TUNE_SCHEMA = "widthfold.tune/3"


class TunedModel(Result, kw_only=True, frozen=True):
    """One model; what is counted are layers as they are and their forms, on all machines.

    Attributes:
        model: name of the file.
        layers: different layers that can be reformulated.
        forms: reformulations of all of them together, alone and between packed tensors.
        measured: what this run added to the store; a layer that several models have counts for
            each of them.
        known: what was in the store before.
        skipped: those among both that were not run: out of reach, or no time was left.
        failed: those among both that were run and gave no time: it crashed, hung, ran out of
            memory, or the runtime has no kernel for it.
        left: layers of which something is still not known, on some machine.
        reason: why the model was not tuned, "" where it was.
        code: exit code of the error that is the reason, 0 where there is none.
    """

    model: str
    layers: int = 0
    forms: int = 0
    measured: int = 0
    known: int = 0
    skipped: int = 0
    failed: int = 0
    left: int = 0
    reason: str = ""
    code: int = 0


class TunedMachine(Result, kw_only=True, frozen=True):
    """A machine that measured: its `identity.machine_identity`, and how much it did."""

    provider: str
    machine: str
    measured: int


class TuneReport(Report, kw_only=True, frozen=True):
    """Result of `tune`.

    Attributes:
        schema: name and version of the JSON report.
        threads: intra-op threads.
        machines: where it was measured; several kinds are possible on a cluster.
        models: in the order in which they were named.
        interrupted: whether measuring was ended by hand.
        store_read_only: whether the store may only be read, so that nothing measured is kept.
    """

    schema: str = TUNE_SCHEMA
    threads: int
    machines: list[TunedMachine]
    models: list[TunedModel]
    interrupted: bool
    store_read_only: bool
