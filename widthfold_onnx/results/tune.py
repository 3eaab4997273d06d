"""What `tune` returns: what is known now of the layers of every model."""

from __future__ import annotations

from widthfold_onnx.results.base import Result

TUNE_SCHEMA = "widthfold.tune/2"


class TunedModel(Result, kw_only=True, frozen=True):
    """One model; measurements are of layers as they are and of their forms, on all machines.

    Attributes:
        model: name of the file.
        layers: different layers that can be reformulated.
        forms: reformulations of all of them together, alone and between packed tensors.
        measured: measurements that this run took; one of a layer that several models have counts
            for each of them.
        known: measurements that were in the store.
        lost: those among both that are no time but a reason: it crashed, hung, or was not worth
            running.
        left: layers of which something is still not known, on some machine.
        reason: why the model could not be read, "" where it could.
        code: exit code that belongs to the reason, 0 where there is none.
    """

    model: str
    layers: int = 0
    forms: int = 0
    measured: int = 0
    known: int = 0
    lost: int = 0
    left: int = 0
    reason: str = ""
    code: int = 0


class TunedMachine(Result, kw_only=True, frozen=True):
    """A machine that measured: its `identity.machine_identity`, and how much it did."""

    provider: str
    machine: str
    measured: int


class TuneReport(Result, kw_only=True, frozen=True):
    """Result of `tune`.

    Attributes:
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
