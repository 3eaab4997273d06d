"""Define the plan: the file format of what is done to a model (`rewrite.draft`).

A plan names layers and describes their structure; it holds no weights. So it can be reviewed as
text, kept beside the code of a model, and applied to the model after it was trained again
(`decide.match`).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from widthfold_onnx.errors import UsageError
from widthfold_onnx.model.atomic import check_own_target, write_file
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.results import Gain
from widthfold_onnx.rewrite.draft import (
    CompanionPlan,
    Draft,
    Extent,
    Limits,
    Name,
    NodePart,
    PaddingPlan,
    Part,
)
from widthfold_onnx.rules.form import FormSpec
from widthfold_onnx.text import printable

MAX_PLAN_BYTES = 64 << 20
"""Largest plan file that is read; one layer takes about 500 bytes."""


class LayerPlan(NodePart, frozen=True, kw_only=True):
    """A layer and the form that replaces it.

    Attributes:
        form: the spec of the form, from which it is made again.
        structure: operator, element type, extents and attributes (`Layer.structure`).
    """

    form: FormSpec
    structure: dict[str, Any]


class Origin(Part, frozen=True, kw_only=True):
    """The program, the machine and the settings with which a plan was decided.

    Attributes:
        widthfold: version of widthfold.
        decision: "factor 8", "strides", "measured" or "predicted".
        provider: where the forms were measured, or for which they were predicted; "" at a fixed
            factor.
        provider_options: options of the provider, as the runtime names them.
        session_options: entries of the session's configuration.
        threads: intra-op threads.
        device: name of the CPU or GPU, or of the target of predictions.
        runtime: version of ONNX Runtime.
    """

    widthfold: str
    decision: str
    provider: str = ""
    provider_options: Mapping[str, str] = msgspec.field(default_factory=dict)
    session_options: Mapping[str, str] = msgspec.field(default_factory=dict)
    threads: int = 0
    device: str = ""
    runtime: str = ""


class LayerGain(NodePart, frozen=True, kw_only=True):
    """The gain of one layer, measured alone."""

    gain: Gain


class PlanTimes(Part, frozen=True, kw_only=True):
    """Times of the run that decided; they differ from run to run and change nothing.

    Attributes:
        whole: the whole model against the original, at the first size.
        setting: of the runtime, such as its level, at which the new model is fastest.
        sizes: shapes of the inputs in that run, one or more assignments.
        layers: gains of single layers.
    """

    whole: Gain | None = None
    setting: str = ""
    sizes: tuple[dict[Name, tuple[Extent, ...]], ...] = ()
    layers: tuple[LayerGain, ...] = ()


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that is done to a model.

    Attributes:
        schema: name and version of the file format.
        frozen: weights that are taken out of the inputs, sorted.
        companions: nodes that companions replace, sorted.
        padding: channels that are padded before layers take forms; None for none.
        layers: layers that are replaced by forms, sorted by name.
        sizes: assumed shapes of inputs whose sizes the model leaves open, one or more assignments;
            forms are planned at the first.
        limits: options that decide whether a form can be made.
        origin: where the plan comes from; None for the empty plan.
        measured: times of the run that decided.
    """

    schema: Literal["widthfold.plan/1"] = "widthfold.plan/1"
    frozen: tuple[Name, ...] = ()
    companions: tuple[CompanionPlan, ...] = ()
    padding: PaddingPlan | None = None
    layers: tuple[LayerPlan, ...] = ()
    sizes: tuple[dict[Name, tuple[Extent, ...]], ...] = ({},)
    limits: Limits = msgspec.field(default_factory=Limits)
    origin: Origin | None = None
    measured: PlanTimes = msgspec.field(default_factory=PlanTimes)

    def __post_init__(self) -> None:
        if not self.sizes:
            raise ValueError("there is no assignment of sizes")
        if self.limits.fixed_shapes and len(self.sizes) > 1:
            count = len(self.sizes)
            raise ValueError(f"fixed_shapes declares one assignment of sizes, not {count}")
        repeated = Counter(layer.name for layer in self.layers).most_common(1)
        if repeated and repeated[0][1] > 1:
            raise ValueError(f"layer {repeated[0][0]} is planned twice")

    def __hash__(self) -> int:
        """Return a hash of the changes."""
        return hash(self.digest)

    @property
    def draft(self) -> Draft:
        """What is done before layers take forms."""
        return Draft(self.frozen, self.companions, self.padding, self.sizes, self.limits)

    @property
    def is_changing(self) -> bool:
        """True if the plan does anything."""
        return bool(self.frozen or self.companions or self.padding or self.layers)

    @property
    def digest(self) -> str:
        """A digest of the changes alone.

        Plans with equal digests make equal models of one original.
        """
        parts = [self.frozen, self.companions, self.layers, self.sizes, self.limits]
        # Last, and only where there is one: stores hold digests from before plans had a padding.
        parts += [] if self.padding is None else [self.padding]
        return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()

    @property
    def options(self) -> FoldOptions:
        """The limits as options, with which its forms are made."""
        return FoldOptions(**msgspec.structs.asdict(self.limits))

    def __str__(self) -> str:
        """Return the changes as a table: one line a layer or companion."""
        rows = [(str(part.name), f"companion {part.companion}") for part in self.companions]
        layers = () if self.padding is None else self.padding.layers
        rows += [(str(p.name), f"{p.channels} channels padded to {p.padded}") for p in layers]
        rows += [
            (str(part.name), f"{part.form.axis} by {part.form.factor}, {part.form.kind}")
            for part in self.layers
        ]
        rows += [(name, "frozen") for name in self.frozen]
        width = max((len(name) for name, _ in rows), default=0)
        lines = [f"{name:<{width}}  {change}" for name, change in rows]
        return "\n".join(lines) or "no changes"

    def save(self, path: Path | str) -> None:
        """Write the plan to a file, replaced in one step; see `text`.

        Raises:
            UsageError: the path is no place for a plan (`check_own_target`), or the disk is full.
        """
        path = Path(path)
        check_own_target(path, (), "plan")
        write_file(path, self.text().encode())

    def text(self) -> str:
        """Return the plan as JSON that is read as a diff: sorted, one layer or companion a line."""
        parts = msgspec.to_builtins(self)
        if not any(self.sizes):
            del parts["sizes"]
        lines = [f"  {json.dumps(name)}: {_lines(part)}" for name, part in parts.items() if part]
        return "{\n" + ",\n".join(lines) + "\n}\n"


def plan_of(draft: Draft, origin: Origin | None = None, measured: PlanTimes | None = None) -> Plan:
    """Return the plan that does what a draft does."""
    layers = [
        LayerPlan(graph=name.graph, node=name.node, structure=form.structure, form=form.spec)
        for name, form in sorted(draft.forms.items(), key=lambda item: item[0])
    ]
    return Plan(
        frozen=draft.frozen,
        companions=draft.companions,
        padding=draft.padding,
        layers=tuple(layers),
        sizes=tuple(map(dict, draft.sizes)),
        limits=draft.limits,
        origin=origin,
        measured=measured or PlanTimes(),
    )


def _lines(part: object) -> str:
    """Return a part of a plan as JSON, with one element a line where it is a list of objects."""
    if not (isinstance(part, list | tuple) and part and isinstance(part[0], dict)):
        return json.dumps(part)
    return "[\n" + ",\n".join(f"    {json.dumps(element)}" for element in part) + "\n  ]"


class _Header(msgspec.Struct):
    """The field that every plan file has: a file without it decodes to the empty plan."""

    schema: str


def read_plan(path: Path | str) -> Plan:
    """Read a plan file.

    Raises:
        UsageError: there is no such file, it is too large, or it is no plan of this version.
    """
    path = Path(path)
    name = printable(path.name or str(path))
    try:
        if path.is_fifo():
            raise UsageError(f"{name}: not a regular file")  # opening it would wait for a writer
        with path.open("rb") as file:
            content = file.read(MAX_PLAN_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{printable(str(path))}: {reason}") from error
    if len(content) > MAX_PLAN_BYTES:
        raise UsageError(f"{name}: more than {MAX_PLAN_BYTES >> 20} MiB are no plan")
    try:
        msgspec.json.decode(content, type=_Header)
        return msgspec.json.decode(content, type=Plan)
    except (msgspec.DecodeError, RecursionError, ValueError, UsageError) as error:
        raise UsageError(
            f"{name}: no plan of this version: {printable(str(error), 300)}"
        ) from error


def differences(planned: Mapping[str, Any], structure: Mapping[str, Any]) -> list[str]:
    """Return how the structure of a layer differs from the planned one, a phrase for each field."""
    names = dict.fromkeys((*planned, *structure))
    return [
        f"{name} is {_value_text(structure.get(name))}, planned {_value_text(planned.get(name))}"
        for name in names
        if structure.get(name) != planned.get(name)
    ]


def _value_text(value: object) -> str:
    return "absent" if value is None else printable(json.dumps(value), 100)
