"""Run the original, and copies that tell how far rounding moves it and where it overflows.

In shaken copies the inputs and the weights of linear layers move by as many units in the last place
as `COPIES` says, up or down at random. Rounding may move the outputs as far as these copies do:
stochastic arithmetic, as of Higham and Mary, A new approach to probabilistic rounding error
analysis, 2019. Constants and inputs that compare, clip, select, index or scale sizes stay: other
limits make another function.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx
from onnx import helper, numpy_helper

from widthfold_onnx.arrays import Array
from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.exact_kernels import open_chosen, open_exact
from widthfold_onnx.evidence.parity.chosen_inputs import run_on_inputs
from widthfold_onnx.evidence.parity.outputs import (
    Movements,
    Outputs,
    compare,
    distance,
    dtype_of,
    pairs,
)
from widthfold_onnx.evidence.parity.runs import Runs, attempt
from widthfold_onnx.model.loader import LoadedModel, copy_with_data
from widthfold_onnx.model.proto.scope import describe_node
from widthfold_onnx.model.proto.walk import operator_of, subgraphs
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.runtime.inputs.cases import MAX_SMALL
from widthfold_onnx.runtime.inputs.feeds import InputSet
from widthfold_onnx.runtime.inputs.input_sets import InputSets
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.text import printable

UNSTEADY_NOTE = "cannot be judged: the original itself gives other values when it runs again"

MAX_COPIED_BYTES = 1 << 29
"""Largest model that is copied; it is held several times."""

COPIES = (1, 1, 10, 10)
"""Units in the last place by which copies are shaken. Copies run while an output is too far off.
Larger steps find sums that are near half a step of a quantizer."""

LINEAR = (
    *("Conv", "ConvTranspose", "Gemm", "MatMul", "BatchNormalization", "Einsum"),
    *("GRU", "LSTM", "RNN", "FusedConv", "FusedGemm", "FusedMatMul"),
)
"""Operators whose constant operands move; the names of ONNX and `com.microsoft` differ."""

PASS_THROUGH = ("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
"""Operators between a constant and the layer that reads it."""

SHAKEN_TYPES = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)

DrawUlps = Callable[[tuple[int, ...]], Array]
"""Draws by how many units in the last place (ulps) the elements of an array of a shape move."""


@dataclass(frozen=True)
class OriginalRuns:
    """The runs of the original, and how all models are run.

    Attributes:
        model: the original.
        options: where models run.
        inputs: the input sets on which the original runs.
        outputs: by input set and name, without the runtime's own optimizations.
        names: of the outputs that the model declares.
        unsteady_outputs: names of outputs that a second run on the same inputs does not repeat.
    """

    model: LoadedModel
    options: VerifyOptions
    inputs: InputSets
    outputs: list[Outputs]
    names: list[str]
    unsteady_outputs: set[str]

    @property
    def doubts(self) -> list[str]:
        """Why outputs cannot be judged, one line each."""
        return [
            f"output {printable(name)} {UNSTEADY_NOTE}" for name in sorted(self.unsteady_outputs)
        ]

    def shapes_of(self, name: str) -> list[tuple[int, ...]]:
        """Return the extents of an output on each input set that returned it."""
        return [outputs[name].shape for outputs in self.outputs if name in outputs]

    def run(self, model: LoadedModel, level: Level) -> Runs:
        """Run a model on each input set."""
        return attempt(model, self.options, level, self.inputs.sets)

    @cached_property
    def optimized_runs(self) -> Runs:
        """Runs with the runtime's optimizations."""
        return self.run(self.model, Level.ALL)

    def movements(self, copy_index: int, set_indices: Collection[int]) -> tuple[Movements, str]:
        """Measure by a shaken copy how far a unit in the last place moves each output.

        An output is left out if the copy has NaN or Inf at other places: then its distance says
        nothing.

        Args:
            copy_index: index of the copy in `COPIES`.
            set_indices: the input sets on which it runs.

        Returns:
            The movements, none on other input sets, and "". If the copy does not run: no movement
            on any input set, and why.
        """
        movements: Movements = [{} for _ in self.outputs]
        draw_ulps = ulps_of(copy_index, COPIES[copy_index])

        def copy() -> onnx.ModelProto:
            return shake(copy_with_data(self.model, MAX_COPIED_BYTES), draw_ulps)

        def sets() -> Iterator[InputSet]:
            for index in sorted(set_indices):
                item = self.inputs.sets[index]
                feeds = {name: shaken_input(array, draw_ulps) for name, array in item.feeds.items()}
                yield InputSet(f"copy {copy_index + 1}, {item.label}", feeds)

        runs = attempt(copy, self.options, Level.DISABLED, sets())
        if runs.failure:
            remark = f"how far rounding moves the original is not known: {runs.failure}"
            return movements, remark
        for index, run in zip(sorted(set_indices), runs.outputs, strict=True):
            movements[index] = {
                name: gap.times(1 / COPIES[copy_index], dtype_of(pair[0]))
                for name, pair in pairs(self.outputs[index], run).items()
                if (gap := distance(*pair)) is not None
            }
        return movements, ""

    def overflow(self, set_index: int) -> str:
        """Name a linear node of the main graph that reads or gives NaN or Inf on an input set.

        The sentence is "" if there is no such node, or if the original does not run with the values
        of these nodes as outputs. Random inputs may be larger than the model was made for. A
        structural zero times Inf is NaN, so a fold spreads such a value to its neighbours, by
        design and within one sample.
        """
        nodes: list[onnx.NodeProto] = []

        def copy() -> onnx.ModelProto:
            model = copy_with_data(self.model, MAX_COPIED_BYTES)
            nodes.extend(node for node in model.graph.node if operator_of(node) in OPERATORS)
            values = {name for node in model.graph.node for name in node.output}
            values &= {name for node in nodes for name in (*node.input, *node.output)}
            for name in sorted(values - {value.name for value in model.graph.output}):
                model.graph.output.add().name = name
            return model

        sets = [self.inputs.sets[set_index]]
        runs = attempt(copy, self.options, Level.DISABLED, sets)
        if runs.failure:
            return ""
        (outputs,) = runs.outputs
        for node in nodes:
            for verb, names in (("reads", node.input), ("gives", node.output)):
                for value in (outputs[name] for name in names if name in outputs):
                    count = np.count_nonzero(~np.isfinite(value)) if value.dtype.kind == "f" else 0
                    if count:
                        return (
                            f"{describe_node(node)} of the original {verb} NaN or Inf there "
                            f"({count} of {value.size} values), which a fold may spread"
                        )
        return ""


def original_runs_of(original: LoadedModel, options: VerifyOptions) -> OriginalRuns:
    """Run the original and close it again: at most two models are in memory at a time.

    Raises:
        UnverifiedError: it does not run.
        UsageError: stored inputs or shapes that do not fit it.
    """
    session = open_exact(original, options, Level.DISABLED)
    options_text = ", ".join(f"{name}={value}" for name, value in options.session_options.items())
    try:
        if options_text:
            open_chosen(original, options, Level.ALL)
    except UnverifiedError as error:  # no `NoKernelError`, which says that no options help
        raise UnverifiedError(f"with {printable(options_text)} {error}") from error
    inputs, outputs = run_on_inputs(original, session, options)
    second_outputs = session.run(inputs.sets[0].feeds)
    unsteady_outputs = {
        name
        for name, pair in pairs(outputs[0], second_outputs).items()
        if not compare(name, *pair, options.tolerance).passed
    }
    return OriginalRuns(original, options, inputs, outputs, session.outputs, unsteady_outputs)


def ulps_of(copy: int, size: int) -> DrawUlps:
    """Draw numbers of one size, up or down at random.

    An odd copy moves every number the other way than the copy before it, so that two copies move a
    number up and down.
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
    """Move an input as `shaken_array` does, without the numbers that a model may compare.

    Small inputs stay: they are limits, rates and switches, whose values are drawn from the
    constants that they are compared with. Whole numbers stay: they are masks, labels and counts.
    Where one unit in the last place turns a comparison, a copy would be another function.
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
            for place, name in enumerate(node.input if node.op_type in LINEAR else ()):
                reader, maker = node, makers.get(name)
                while maker is not None and maker.op_type in PASS_THROUGH:
                    reader, place, name = maker, 0, maker.input[0]
                    maker = makers.get(name)
                if maker is not None and maker.op_type == "DequantizeLinear":
                    weight, scale = (constants.get(operand) for operand in maker.input[:2])
                    if weight is not None and scale is not None and scale.data_type in SHAKEN_TYPES:
                        units = np.ones(tuple(weight.dims), numpy_helper.to_array(scale).dtype)
                        factors, product = next(names), next(names)
                        value = numpy_helper.from_array(shaken_array(units, draw_ulps))
                        graph.node.append(helper.make_node("Constant", [], [factors], value=value))
                        graph.node.append(helper.make_node("Mul", [name, factors], [product]))
                        reader.input[place] = product
                elif name in constants and constants[name].data_type in SHAKEN_TYPES:
                    weights[id(constants[name])] = constants[name]

    visit(model.graph, {}, {})
    for tensor in weights.values():
        array = shaken_array(numpy_helper.to_array(tensor), draw_ulps)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return model
