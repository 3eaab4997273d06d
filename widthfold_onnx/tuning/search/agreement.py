"""Choose the forms of all layers at least total cost: a linear program over layers and links.

A layer takes one form; a link (`tuning.layers`) is in one layout, logical or packed.
If a layer reads or returns another layout than its link, packing or unpacking is paid, once for
each link and layout, as the rewriting emits them. The cost of a form between packed tensors and the
cost of its moves are measured (`tuning.layers`). Branches that meet again make this a problem on
graphs. It is solved as an integer program, as Anderson and Gregg select layouts (Optimal
DNN Primitive Selection with Partitioned Boolean Quadratic Programming, CGO 2018): the solver proves
that the cost is least.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from widthfold_onnx.algebra.layouts import PackedLayout
from widthfold_onnx.rules.form import FormSpec
from widthfold_onnx.tuning.bench import MIN_GAIN
from widthfold_onnx.tuning.layers import Layers, Link, subject_inside
from widthfold_onnx.tuning.measurement import AS_IS, Candidate, Measurement
from widthfold_onnx.tuning.workloads import PredictedForm, Workload

SOLVER_SECONDS = 10.0

MeasurementOf = Callable[[str, Candidate], Measurement | None]
"""Returns the measurement of (subject, candidate), if there is one."""


class Choice(NamedTuple):
    """One form that a layer may take, or the layer as it is.

    Attributes:
        spec: the form; None for the layer as it is.
        seconds: time of one run between tensors in the layouts that it reads and returns.
        input_layout: layout of the input; None for logical.
        output_layout: layout of the output; None for logical.
        end_seconds: seconds of the moves at one packed end: what the form takes alone beyond its
            time between packed tensors, shared equally among its packed ends.
    """

    spec: FormSpec | None
    seconds: float
    input_layout: PackedLayout | None = None
    output_layout: PackedLayout | None = None
    end_seconds: float = 0.0


def forms_by_measurement(layers: Layers, measurement_of: MeasurementOf) -> dict[str, FormSpec]:
    """Choose the forms of least measured cost.

    Args:
        layers: the layers of the model.
        measurement_of: returns the measurement of a form; a layer without one stays as it is.

    Returns:
        Subject -> form, for layers that are not left as they are.
    """
    return _least(layers, {s: [*_measured(w, measurement_of)] for s, w in layers.workloads.items()})


def forms_by_prediction(layers: Layers) -> dict[str, FormSpec]:
    """Choose the forms of least predicted cost, as `forms_by_measurement` does."""
    inside = layers.workloads_inside
    return _least(layers, {s: [*_predicted(w, inside.get(s))] for s, w in layers.workloads.items()})


def _measured(workload: Workload, measurement_of: MeasurementOf) -> Iterator[Choice]:
    """Yield the choices of a layer whose times are known."""
    subject, inside = workload.subject, subject_inside(workload.subject)
    as_is = measurement_of(subject, AS_IS)
    if as_is is None or as_is.status != "ok":
        yield Choice(None, 0.0)
        return
    as_is_seconds = as_is.seconds
    yield Choice(None, as_is_seconds / MIN_GAIN)

    def seconds(subject: str, form: PredictedForm) -> float | None:
        result = measurement_of(subject, form.spec)
        # The low end, because noise makes one of many equally fast forms look the fastest.
        return None if result is None or result.status != "ok" else as_is_seconds / result.low

    for form in workload.forms:
        lone_seconds = seconds(subject, form)
        if lone_seconds is not None:
            yield _choice(form, lone_seconds, seconds(inside, form))


def _predicted(workload: Workload, inside: Workload | None) -> Iterator[Choice]:
    """Yield all choices of a layer; `inside` has the forms that may run between packed tensors."""
    yield Choice(None, workload.predicted_seconds / MIN_GAIN)
    shared = set() if inside is None else set(inside.forms)
    for form in workload.forms:
        seconds_inside = form.predicted_seconds_inside if form in shared else None
        yield _choice(form, form.predicted_seconds, seconds_inside)


def _choice(form: PredictedForm, lone_seconds: float, packed_seconds: float | None) -> Choice:
    """Return a form as a choice, by its seconds alone and between packed tensors if they count."""
    if packed_seconds is None:
        return Choice(form.spec, lone_seconds)
    core = min(packed_seconds, lone_seconds)
    layouts = (form.input_layout, form.output_layout)
    return Choice(form.spec, core, *layouts, (lone_seconds - core) / (2 - layouts.count(None)))


def _least(layers: Layers, choices: Mapping[str, Sequence[Choice]]) -> dict[str, FormSpec]:
    program = _Program()
    variables_of = {
        subject: [
            program.variable(layers.layer_count(subject) * c.seconds, is_integer=True)
            for c in of_layer
        ]
        for subject, of_layer in choices.items()
    }
    for variables in variables_of.values():
        program.exactly_one(variables)
    for link in layers.links:
        _join(program, link, choices, variables_of)
    values = program.solve() if choices else []
    return {
        subject: choice.spec
        for subject, of_layer in choices.items()
        for choice, variable in zip(of_layer, variables_of[subject], strict=True)
        if choice.spec is not None and values[variable] > 1 / 2
    }


def _join(
    program: _Program,
    link: Link,
    choices: Mapping[str, Sequence[Choice]],
    variables_of: Mapping[str, Sequence[int]],
) -> None:
    """Add the cost of a link: its layout, and the packing and unpacking that its layers need.

    The table is for one layout p. "Another" is any other layout, the logical one included; ops that
    are no layers are in the logical one. Packing and unpacking are paid once each, however
    many layers need them:

        a maker returns   the link is in   a reader reads   paid
        p                 another                           unpacking
        another           p                                 packing
                          p                another          unpacking
                          another          p                packing
    """
    sides: list[tuple[defaultdict[PackedLayout | None, list[int]], bool]] = []
    cost: dict[PackedLayout, float] = defaultdict(float)
    for subjects, makes in ((link.makers, True), (link.readers, False)):
        for subject in dict.fromkeys(subjects):
            by_layout: defaultdict[PackedLayout | None, list[int]] = defaultdict(list)
            for choice, variable in zip(choices[subject], variables_of[subject], strict=True):
                layout = choice.output_layout if makes else choice.input_layout
                by_layout[layout].append(variable)
                if layout is not None:
                    cost[layout] = max(cost[layout], choice.end_seconds)
            sides.append((by_layout, makes))
    is_in = {layout: program.variable(0.0, is_integer=True) for layout in cost}
    program.exactly_one([*is_in.values(), program.variable(0.0, is_integer=True)])
    for layout, seconds in cost.items():
        pack, unpack = program.variable(seconds), program.variable(seconds)
        if link.has_other_maker:
            program.at_least(pack, [is_in[layout]])
        if link.has_other_reader:
            program.at_least(unpack, [is_in[layout]])
        for by_layout, makes in sides:
            inward, outward = (unpack, pack) if makes else (pack, unpack)
            program.at_least(inward, by_layout[layout], [is_in[layout]])
            program.at_least(outward, [is_in[layout]], by_layout[layout])


class _Program:
    """A linear program of least cost; variables lie in [0, 1], some of them are integers."""

    def __init__(self) -> None:
        self._costs: list[float] = []
        self._is_integer: list[bool] = []
        self._rows: list[dict[int, float]] = []
        self._ranges: list[tuple[float, float]] = []

    def variable(self, cost: float, *, is_integer: bool = False) -> int:
        """Add a variable; if it is no integer, it takes the least value that its rows allow."""
        self._costs.append(cost)
        self._is_integer.append(is_integer)
        return len(self._costs) - 1

    def exactly_one(self, variables: Sequence[int]) -> None:
        """Require that the variables sum to 1, so that one integer variable is chosen."""
        self._rows.append(dict.fromkeys(variables, 1.0))
        self._ranges.append((1.0, 1.0))

    def at_least(
        self, variable: int, addends: Sequence[int], subtrahends: Sequence[int] = ()
    ) -> None:
        """Require that a variable is at least the sum of addends less the sum of subtrahends."""
        self._rows.append(
            {variable: 1.0, **dict.fromkeys(addends, -1.0), **dict.fromkeys(subtrahends, 1.0)}
        )
        self._ranges.append((0.0, np.inf))

    def solve(self) -> Sequence[float]:
        """Return the values of all variables; costs of microseconds are scaled for the solver."""
        # Imported here because the import takes half a second and nothing else needs it.
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import lil_array

        matrix = lil_array((len(self._rows), len(self._costs)))
        for index, row in enumerate(self._rows):
            for variable, factor in row.items():
                matrix[index, variable] = factor
        lows, highs = np.array(self._ranges).T
        costs = np.array(self._costs)
        solution = milp(
            costs / (costs.max() or 1.0),
            integrality=np.array(self._is_integer, np.int64),
            bounds=Bounds(0, 1),
            constraints=LinearConstraint(matrix.tocsr(), lows, highs),
            options={"time_limit": SOLVER_SECONDS},
        )
        return [0.0] * len(costs) if solution.x is None else list(solution.x)
