"""Change one thing in each of onnx's own node cases, and ask the runtime what changed."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import AttributeProto, helper, numpy_helper
from onnx.backend.test.case.node import collect_testcases

from tests.evidence.proof.sweep.contrib import contrib_cases
from widthfold_onnx.errors import UnverifiedError, UsageError
from widthfold_onnx.evidence.proof.program import Program
from widthfold_onnx.evidence.proof.proving import proof_report
from widthfold_onnx.runtime.library import runtime

MAX_ELEMENTS = 1 << 14
"""Elements of all inputs of a case; larger ones show nothing more."""

WORDS = {
    "mode": ("linear", "nearest", "cubic", "constant", "reflect", "edge", "wrap", "DCR", "CRD"),
    "auto_pad": ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"),
    "coordinate_transformation_mode": ("half_pixel", "align_corners", "asymmetric"),
    "nearest_mode": ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil"),
    "reduction": ("none", "add", "mul", "max", "min", "mean", "sum"),
    "direction": ("LEFT", "RIGHT", "forward", "reverse", "bidirectional"),
    "approximate": ("none", "tanh"),
    "padding_mode": ("zeros", "border", "reflection"),
}
"""Other values of attributes that are words."""

RANDOM = {
    *("Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike"),
    *("RandomUniform", "RandomUniformLike"),
}


@dataclass(frozen=True)
class Case:
    """A model and inputs for it."""

    name: str
    model: onnx.ModelProto
    feeds: dict[str, np.ndarray]

    @property
    def operator(self) -> str:
        node = self.model.graph.node[0]
        return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def node_cases() -> Iterator[Case]:
    """Yield the cases of onnx whose inputs are tensors."""
    for case in sorted(collect_testcases(None), key=lambda case: str(case.name)):
        model = case.model
        if model is None or case.kind != "node":
            continue
        is_random = any(node.op_type in RANDOM for node in model.graph.node)
        arrays = case.data_sets[0][0]
        if is_random or not all(isinstance(array, np.ndarray) for array in arrays):
            continue
        if sum(array.size for array in arrays) <= MAX_ELEMENTS:
            names = [value.name for value in model.graph.input]
            yield Case(case.name, model, dict(zip(names, arrays, strict=False)))


def own_cases() -> Iterator[Case]:
    """Yield cases of operators of the runtime."""
    yield from (Case(*parts) for parts in contrib_cases())


def frozen(case: Case) -> Case | None:
    """Return a case whose inputs are constants from the second one on, None if it has one alone."""
    names = [value.name for value in case.model.graph.input]
    if len(names) < 2:
        return None
    model = copy.deepcopy(case.model)
    del model.graph.input[1:]
    model.graph.initializer.extend(
        numpy_helper.from_array(case.feeds[name], name) for name in names[1:]
    )
    return Case(f"{case.name} frozen", model, {names[0]: case.feeds[names[0]]})


def mutants(case: Case) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yield models that differ from a case in one attribute or in one element of a constant."""
    for index, node in enumerate(case.model.graph.node):
        schema = _schema(case.model, node)
        names = {attribute.name for attribute in node.attribute}
        defaults = [
            item.default_value
            for item in (schema.attributes.values() if schema else ())
            if item.default_value.type and item.name not in names
        ]
        for attribute in (*node.attribute, *defaults):
            for number, changed in enumerate(_others(attribute)):
                model = copy.deepcopy(case.model)
                rest = [a for a in node.attribute if a.name != attribute.name]
                del model.graph.node[index].attribute[:]
                model.graph.node[index].attribute.extend(rest)
                if changed is not None:
                    model.graph.node[index].attribute.append(changed)
                yield f"{attribute.name} {number}", model
    for index, tensor in enumerate(case.model.graph.initializer):
        array = numpy_helper.to_array(tensor)
        for number, changed in enumerate(_arrays(array)):
            model = copy.deepcopy(case.model)
            model.graph.initializer[index].CopyFrom(numpy_helper.from_array(changed, tensor.name))
            yield f"{tensor.name} {number}", model


def _schema(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.defs.OpSchema | None:
    version = {item.domain: item.version for item in model.opset_import}.get(node.domain, 1)
    try:
        return onnx.defs.get_schema(node.op_type, version, node.domain)
    except onnx.defs.SchemaError:
        return None


def _others(attribute: AttributeProto) -> Iterator[AttributeProto | None]:
    """Yield an attribute with other values, and None for its default."""
    name, value = attribute.name, helper.get_attribute_value(attribute)
    yield None
    if attribute.type == AttributeProto.INT:
        for other in (value - 1, value + 1, value + 2, value - 2, value - 3, 1 - value, -value):
            yield helper.make_attribute(name, other)
    elif attribute.type == AttributeProto.FLOAT:
        for number in (value + 0.5, -value, value * 2, value * (1 + 1e-3), 0.0):
            yield helper.make_attribute(name, number)
    elif attribute.type == AttributeProto.INTS:
        for i, one in enumerate(value):
            for other in (one + 1, one - 1, -one):
                yield helper.make_attribute(name, [*value[:i], other, *value[i + 1 :]])
        for i in range(len(value) - 1):
            swapped = [*value]
            swapped[i : i + 2] = swapped[i + 1], swapped[i]
            yield helper.make_attribute(name, swapped)
    elif attribute.type == AttributeProto.FLOATS:
        for i, one in enumerate(value):
            yield helper.make_attribute(name, [*value[:i], one + 0.5, *value[i + 1 :]])
    elif attribute.type == AttributeProto.STRING:
        for word in WORDS.get(name, ()):
            yield helper.make_attribute(name, word)
    elif attribute.type == AttributeProto.TENSOR:
        for array in _arrays(numpy_helper.to_array(value)):
            yield helper.make_attribute(name, numpy_helper.from_array(array))


def _arrays(array: np.ndarray) -> Iterator[np.ndarray]:
    """Yield arrays with one element changed, and one of another rank."""
    if not array.size or array.dtype.kind not in "fiub":
        return
    for place in {0, array.size // 2, array.size - 1}:
        for step in (1, -1):
            changed = array.copy()
            flat = changed.reshape(-1)
            if array.dtype.kind == "b":
                flat[place] = not flat[place]
            elif array.dtype.kind in "iu":
                limits = np.iinfo(array.dtype)
                flat[place] = min(max(int(flat[place]) + step, limits.min), limits.max)
            else:
                flat[place] += flat.dtype.type(step * 0.25)
            if not np.array_equal(changed, array):
                yield changed
    yield array.reshape(1, *array.shape)


def input_sets(case: Case) -> list[dict[str, np.ndarray]]:
    """Return the stored inputs, random ones, and extreme ones for the first input."""
    rng = np.random.default_rng(len(case.name))
    first = next(iter(case.feeds), None)
    sets = [case.feeds]
    if first is None or case.feeds[first].dtype.kind not in "fiub":
        return sets
    data = case.feeds[first]
    if data.dtype.kind == "f":
        others = [rng.standard_normal(data.shape) * 3, np.full(data.shape, 1e4), -np.abs(data) - 1]
    elif data.dtype.kind == "b":
        others = [~data, np.ones_like(data)]
    else:
        limits = np.iinfo(data.dtype)
        others = [
            rng.integers(limits.min, limits.max, data.shape, data.dtype, endpoint=True),
            rng.permutation(data.reshape(-1)).reshape(data.shape),
            np.full(data.shape, limits.max),
        ]
    return [*sets, *({**case.feeds, first: np.asarray(x).astype(data.dtype)} for x in others)]


Outputs = list[list[np.ndarray] | None]


def outputs_of(model: onnx.ModelProto, sets: Sequence[dict[str, np.ndarray]]) -> Outputs | None:
    """Return what the runtime computes for each input set, None where it refuses the model."""
    onnxruntime = runtime()
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception:  # any: an invalid model, a kernel that is not there
        return None
    results: Outputs = []
    for feeds in sets:
        try:
            results.append(session.run(None, feeds))
        except Exception:
            results.append(None)
    return results


def differ(old: Outputs, new: Outputs) -> bool:
    """Check whether two models that both run on an input set return something else there."""
    return any(
        first is not None and second is not None and not all(map(_is_alike, first, second))
        for first, second in zip(old, new, strict=True)
    )


def _is_alike(first: object, second: object) -> bool:
    if not isinstance(first, np.ndarray) or not isinstance(second, np.ndarray):
        return repr(first) == repr(second)
    if (first.shape, first.dtype) != (second.shape, second.dtype):
        return False
    if first.dtype.kind != "f":
        return bool(np.array_equal(first, second))
    with np.errstate(all="ignore"):
        scale = 1e-5 * max(1e-30, float(np.nanmax(np.abs(first), initial=0)))
        return bool(np.allclose(first, second, 0, scale, equal_nan=True))


@dataclass
class Tally:
    """What a sweep found.

    Attributes:
        operators: with a pair of models that the runtime runs.
        pairs: of which both run.
        unequal: pairs of which outputs differ.
        verdicts: of the proof of these.
        wrong: names of unequal pairs that were called equal.
        errors: names of pairs on which the proof stopped with an error of its own.
    """

    operators: set[str] = field(default_factory=set)
    pairs: int = 0
    unequal: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def add(self, case: Case) -> None:
        """Compare a case with all its mutants."""
        sets = input_sets(case)
        old = outputs_of(case.model, sets)
        if old is None or not any(old):
            return
        program = Program.of(case.model, None)
        sizes = ({name: array.shape for name, array in case.feeds.items()},)
        for change, model in mutants(case):
            new = outputs_of(model, sets)
            if new is None or not any(new):
                continue
            self.operators.add(case.operator)
            self.pairs += 1
            if not differ(old, new):
                continue
            self.unequal += 1
            name = f"{case.name}: {change}"
            try:
                verdict = proof_report(program, Program.of(model, None), sizes, {}).verdict
            except (UnverifiedError, UsageError):
                verdict = "skipped"
            except Exception as error:  # each is a finding
                self.errors.append(f"{name}: {type(error).__name__}: {error}")
                continue
            self.verdicts[verdict] += 1
            if verdict == "equal":
                self.wrong.append(name)
