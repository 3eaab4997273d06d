"""Measure how far rounding moves the outputs of the original.

A shaken copy is the original with inputs and weights of linear layers moved by some units in the
last place (`COPIES`), up or down at random. Rounding may move the outputs as far as the copies do:
stochastic arithmetic, see Higham and Mary, A new approach to probabilistic rounding error analysis,
2019. Numbers that compare, clip, select, index or scale sizes stay, as a model with other limits is
another function.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import onnx
from onnx import helper, numpy_helper

from widthfold_onnx.arrays import Array
from widthfold_onnx.evidence.parity.original_runs import MAX_COPIED_BYTES, OriginalRuns
from widthfold_onnx.evidence.parity.outputs import (
    MULTIPLE_IF_PROVED,
    Allowance,
    Distance,
    Movements,
    Outputs,
    compare,
    distance,
    dtype_of,
    pairs,
)
from widthfold_onnx.evidence.parity.runs import attempt
from widthfold_onnx.evidence.parity.truth import true_outputs
from widthfold_onnx.model.loader import copy_with_data
from widthfold_onnx.model.proto.walk import subgraphs
from widthfold_onnx.progress import Step, progress
from widthfold_onnx.results import OutputParity
from widthfold_onnx.runtime.inputs.cases import MAX_SMALL
from widthfold_onnx.runtime.inputs.feeds import InputSet
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.text import printable

COPIES = (1, 1, 10, 10)
"""Units in the last place by which each copy is shaken. The next copy runs only if an output is too
far off so far. The last two find sums that are near half a step of a quantizer."""

LINEAR = (
    *("Conv", "ConvTranspose", "Gemm", "MatMul", "BatchNormalization", "Einsum"),
    *("GRU", "LSTM", "RNN", "FusedConv", "FusedGemm", "FusedMatMul"),
)
"""Operators whose constant operands move; the names of ONNX and `com.microsoft` differ."""

PASS_THROUGH = ("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
"""Operators between a constant and the layer that reads it."""

SHAKEN_TYPES = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)

DrawUlps = Callable[[tuple[int, ...]], Array]
"""For a shape, returns by how many units in the last place (ulps) each element moves."""


@dataclass(frozen=True)
class Rounding:
    """What was measured so far of the rounding of the original.

    Attributes:
        original: its runs.
        truths: its outputs in float64, by input set; {} where they are not known.
        movements: how far shaken copies move each output, by input set.
        truth_remark: why the truth is not known on some input sets, "" if it is, or was not needed.
        copy_remark: why a copy does not run, "" if all do; no further copies run then.
    """

    original: OriginalRuns
    truths: Sequence[Outputs]
    movements: Movements
    truth_remark: str = ""
    copy_remark: str = ""

    @classmethod
    def unknown(cls, original: OriginalRuns) -> Self:
        """Return the state in which nothing was measured."""
        sets = original.inputs.sets
        return cls(original, [{} for _ in sets], [{} for _ in sets])

    def with_copy(self, set_indices: Collection[int], copy_index: int) -> Self:
        """Run a shaken copy on some input sets."""
        if self.copy_remark:
            return self
        movements, remark = moved_by_copy(self.original, copy_index, set_indices)
        larger_movements = [
            old | {name: gap.joined(old.get(name, gap)) for name, gap in new.items()}
            for old, new in zip(self.movements, movements, strict=True)
        ]
        return replace(self, movements=larger_movements, copy_remark=remark)

    def with_truth(self, set_indices: Collection[int]) -> Self:
        """Run the original in float64 on some input sets.

        Raises:
            UnverifiedError: it hangs or crashes.
        """
        original, indices = self.original, sorted(set_indices)
        progress(Step("float64 truth"))
        sets = [original.inputs.sets[index] for index in indices]
        work = original.options.truth_work
        results, remark = true_outputs(original.model, original.names, sets, work)
        truths = [*self.truths]
        for index, truth in zip(indices, results, strict=True):
            truths[index] = truth
        return replace(self, truths=truths, truth_remark=remark)

    def usable(self) -> tuple[list[Outputs], Movements, str]:
        """Leave out truths from which the original is further than equal models may be.

        Then one of the two is wrong: docs/verification.md#parity names a fault of either.

        Returns:
            Three things: the truths that are left, in the types of the outputs; the movements, each
            at least the distance of the original from such a truth; and a remark on the truths that
            were left out, "" if none was.
        """
        truths: list[Outputs] = [{} for _ in self.truths]
        movements = [dict(movement) for movement in self.movements]
        unused_gaps: dict[str, float] = {}
        for index, truth in enumerate(self.truths):
            outputs, movement = self.original.outputs[index], movements[index]
            for name, values in truth.items():
                if self.original.options.tolerance.is_chosen(name):  # that is about both models
                    continue
                true_values, row = self._compared(outputs[name], values, name, movement.get(name))
                if row.passed:
                    truths[index][name] = true_values
                    if name in movement:
                        gap = Distance(row.max_abs or 0.0, row.mean_abs or 0.0)
                        movement[name] = movement[name].joined(gap)
                else:
                    unused_gaps[name] = max(unused_gaps.get(name, 0.0), row.max_rel or 0.0)
        return truths, movements, _remark(unused_gaps)

    def _compared(
        self, output: Array, truth: Array, name: str, movement: Distance | None
    ) -> tuple[Array, OutputParity]:
        """Return a truth in the type of an output, and how far the output is from it."""
        with np.errstate(over="ignore"):
            true_values = truth.astype(output.dtype)
        allowance = Allowance(movement, MULTIPLE_IF_PROVED)
        tolerance = self.original.options.tolerance
        return true_values, compare(name, true_values, output, tolerance, allowance)


def _remark(unused_gaps: Mapping[str, float]) -> str:
    """Name outputs whose truth is not used, with the distance of the original; 0 if unknown."""
    if not unused_gaps:
        return ""
    names, largest = ", ".join(map(printable, unused_gaps)), max(unused_gaps.values())
    amount = f"{largest:.3g}" if largest else "an unknown amount"
    text = f"float64 truth not used for output {names}: the original is {amount} away from it"
    return f"{text}, more than rounding explains"


def moved_by_copy(
    original: OriginalRuns, copy_index: int, set_indices: Collection[int]
) -> tuple[Movements, str]:
    """Measure by a shaken copy how far a unit in the last place moves each output.

    An output is left out if the copy has NaN or Inf at other places: then its distance says
    nothing.

    Args:
        original: the runs of the original.
        copy_index: index of the copy in `COPIES`.
        set_indices: the input sets on which it runs.

    Returns:
        The movements by input set, {} for the others; and why the copy does not run (then all are
        {}), "" if it does.
    """
    movements: Movements = [{} for _ in original.outputs]
    draw_ulps = ulps_of(copy_index, COPIES[copy_index])

    def copy() -> onnx.ModelProto:
        return shake(copy_with_data(original.model, MAX_COPIED_BYTES), draw_ulps)

    def sets() -> Iterator[InputSet]:
        for index in sorted(set_indices):
            item = original.inputs.sets[index]
            feeds = {name: shaken_input(array, draw_ulps) for name, array in item.feeds.items()}
            yield InputSet(f"copy {copy_index + 1}, {item.label}", feeds)

    runs = attempt(copy, original.options, Level.DISABLED, sets())
    if runs.failure:
        remark = f"how far rounding moves the original is not known: {runs.failure}"
        return movements, remark
    for index, run in zip(sorted(set_indices), runs.outputs, strict=True):
        movements[index] = {
            name: gap.times(1 / COPIES[copy_index], dtype_of(pair[0]))
            for name, pair in pairs(original.outputs[index], run).items()
            if (gap := distance(*pair)) is not None
        }
    return movements, ""


def ulps_of(copy: int, size: int) -> DrawUlps:
    """Return draws of `size` or `-size` at random.

    An odd copy draws the opposite of the copy before it: one moves a number up, the other down.
    """
    generator, ulps = np.random.default_rng(copy // 2), size if copy % 2 else -size
    return lambda shape: np.where(generator.random(shape) < 0.5, ulps, -ulps)


def shaken_array(array: Array, draw_ulps: DrawUlps) -> Array:
    """Return floats moved by as many ulps as are drawn; 0, Inf, NaN and other types stay."""
    if array.dtype.kind != "f":
        return array
    with np.errstate(invalid="ignore", over="ignore"):
        result = array + np.spacing(np.abs(array)) * draw_ulps(array.shape).astype(array.dtype)
    return np.asarray(np.where((array == 0) | ~np.isfinite(result), array, result))


def shaken_input(array: Array, draw_ulps: DrawUlps) -> Array:
    """Move an input as `shaken_array` does, except for numbers that a model may compare.

    If one unit in the last place turned a comparison, the copy would be another function. So small
    inputs stay (limits, rates and switches, whose values come from the constants that they are
    compared with), and so do whole numbers (masks, labels and counts).
    """
    if array.dtype.kind != "f" or array.size <= MAX_SMALL:
        return array
    return np.where(array == np.rint(array), array, shaken_array(array, draw_ulps))


def shake(model: onnx.ModelProto, draw_ulps: DrawUlps) -> onnx.ModelProto:
    """Move the weights of all linear layers of a model, in place; each moves once.

    A weight that is stored as integers moves behind its DequantizeLinear, by a Mul node.
    """
    names = (f"widthfold/shaken/{i}" for i in itertools.count())
    weights: dict[int, onnx.TensorProto] = {}  # several graphs may read one

    def visit(
        graph: onnx.GraphProto,
        outer_makers: Mapping[str, onnx.NodeProto],
        outer_constants: Mapping[str, onnx.TensorProto],
    ) -> None:
        makers = {**outer_makers, **{name: node for node in graph.node for name in node.output}}
        constants = {**outer_constants, **{tensor.name: tensor for tensor in graph.initializer}}
        for node in graph.node:
            if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
                constants[node.output[0]] = node.attribute[0].t
        for node in list(graph.node):
            for _, inner in subgraphs(node.attribute):
                visit(inner, makers, constants)
            for index, name in enumerate(node.input if node.op_type in LINEAR else ()):
                reader, maker = node, makers.get(name)
                while maker is not None and maker.op_type in PASS_THROUGH:
                    reader, index, name = maker, 0, maker.input[0]
                    maker = makers.get(name)
                if maker is not None and maker.op_type == "DequantizeLinear":
                    weight, scale = (constants.get(operand) for operand in maker.input[:2])
                    if weight is not None and scale is not None and scale.data_type in SHAKEN_TYPES:
                        units = np.ones(tuple(weight.dims), numpy_helper.to_array(scale).dtype)
                        factors, product = next(names), next(names)
                        value = numpy_helper.from_array(shaken_array(units, draw_ulps))
                        graph.node.append(helper.make_node("Constant", [], [factors], value=value))
                        graph.node.append(helper.make_node("Mul", [name, factors], [product]))
                        reader.input[index] = product
                elif name in constants and constants[name].data_type in SHAKEN_TYPES:
                    weights[id(constants[name])] = constants[name]

    visit(model.graph, {}, {})
    for tensor in weights.values():
        array = shaken_array(numpy_helper.to_array(tensor), draw_ulps)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return model
