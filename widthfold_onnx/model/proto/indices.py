"""Find the inputs of whole numbers that are indices, counts or sizes; all others are data.

Random numbers may be fed only as data: an index out of range stops a model, a large size takes all
memory, and a Loop runs as often as a number says.

    x - Cast - Conv      data: any number
    ids - Gather         indices: below the extent of the table
    n - Add - Range      a count: 0 or 1, as what follows is not known
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import onnx

from widthfold_onnx.model.proto.functions import without_functions
from widthfold_onnx.model.proto.walk import domain_name, operator_of, required_inputs, subgraphs

UNKNOWN_ROWS = 2
"""Limit where the indexed extent is not known: 0 and 1 are indices of any extent above 1."""

INDICES: Mapping[tuple[str, str], Collection[int]] = {
    **{("", name): (0,) for name in ("BlackmanWindow", "HammingWindow", "HannWindow")},
    **{("", name): (4,) for name in ("GRU", "LSTM", "RNN")},
    **{("", name): (1,) for name in ("Gather", "GatherElements", "GatherND")},
    **{("", name): (1,) for name in ("Scatter", "ScatterElements", "ScatterND")},
    **{("", name): (1,) for name in ("Expand", "Reshape", "Squeeze", "Unsqueeze")},
    **{("", name): (1,) for name in ("Split", "SplitToSequence", "SequenceAt", "SequenceErase")},
    **{("", name): (1,) for name in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")},
    **{("", f"Reduce{name}"): (1,) for name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean")},
    **{("", f"Reduce{name}"): (1,) for name in ("Min", "Prod", "Sum", "SumSquare")},
    ("", "AffineGrid"): (1,),
    ("", "Attention"): (6,),
    ("", "BitShift"): (1,),
    ("", "CenterCropPad"): (1,),
    ("", "Col2Im"): (1, 2),
    ("", "ConstantOfShape"): (0,),
    ("", "CumProd"): (1,),
    ("", "CumSum"): (1,),
    ("", "DFT"): (1, 2),
    ("", "Div"): (1,),
    ("", "Loop"): (0,),
    ("", "MaxUnpool"): (1, 2),
    ("", "MelWeightMatrix"): (0, 1, 2),
    ("", "Mod"): (1,),
    ("", "NonMaxSuppression"): (2,),
    ("", "OneHot"): (0, 1),
    ("", "Pad"): (1, 3),
    ("", "Range"): (0, 1, 2),
    ("", "Resize"): (1, 2, 3),
    ("", "ReverseSequence"): (1,),
    ("", "RoiAlign"): (2,),
    ("", "RotaryEmbedding"): (3,),
    ("", "STFT"): (1, 3),
    ("", "SequenceInsert"): (2,),
    ("", "Slice"): (1, 2, 3, 4),
    ("", "TensorScatter"): (2,),
    ("", "Tile"): (1, 2),
    ("", "TopK"): (1,),
    ("", "Trilu"): (1,),
    ("", "Upsample"): (1,),
    ("ai.onnx.ml", "ArrayFeatureExtractor"): (1,),
}
"""Positions of operands that are indices, counts, sizes, axes or divisors, by operator, for all its
versions. Divisors, because a division of integers by 0 ends the process. All integers that an
operator of another domain reads count as indices."""

DOMAINS = ("", "ai.onnx.ml")

BOUNDED = frozenset(
    {
        *("ArgMax", "ArgMin", "NonMaxSuppression", "NonZero", "Shape", "Size"),
        *("Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual"),
        *("And", "Not", "Or", "Xor"),
    }
)
"""Operators whose results are valid indices or truth values, whatever numbers they read."""

WITH_INDICES = ("MaxPool", "TopK")
"""Operators whose second output says where the elements of the first are."""

MOVES = (
    *("Cast", "Concat", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze"),
    *("Tile", "Transpose", "Unsqueeze"),
)
"""Operators that return elements of their operands; a Cast does if it keeps whole numbers."""

WHOLE = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)


def index_limits(model: onnx.ModelProto) -> dict[str, int]:
    """Return the inputs that are indices, counts or sizes, with the limit that each stays below.

    It is the extent of the smallest constant table that the input indexes, else `UNKNOWN_ROWS`.
    """
    reader = _Reader({value.name for value in required_inputs(model)})
    graph, size = without_functions(model).graph, -1
    while size != reader.size:  # nodes may be in any order, and loops feed back their results
        size = reader.size
        reader.read(graph)
    return reader.limits


Inputs = dict[str, frozenset[str]]
"""Inputs of a model on which values depend, by name of the value."""


class _Reader:
    """Follows the elements of inputs through the nodes of a model.

    Attributes:
        limits: as `index_limits` returns them, of what was read so far.
    """

    def __init__(self, inputs: Collection[str]) -> None:
        self.limits: dict[str, int] = {}
        # Inputs on whose elements a value depends; `_origins` leave out those behind `BOUNDED`.
        self._dependencies = {name: frozenset({name}) for name in inputs}
        self._origins = dict(self._dependencies)
        self._moved = set(inputs)  # values whose elements are elements of inputs
        self._extents: dict[str, tuple[int, ...]] = {}

    @property
    def size(self) -> int:
        """How much is known; it never falls."""
        values = (*self._origins.values(), *self._dependencies.values())
        return len(self._moved) + sum(map(len, values))

    def read(self, graph: onnx.GraphProto) -> None:
        """Read a graph, and all graphs in it, once."""
        self._extents |= {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
        for node in graph.node:
            self._read_node(node)

    def _read_node(self, node: onnx.NodeProto) -> None:
        attributes = {attribute.name: attribute for attribute in node.attribute}
        if node.op_type == "Constant" and "value" in attributes:
            self._extents[node.output[0]] = tuple(attributes["value"].t.dims)
        self._mark(node, attributes["axis"].i if "axis" in attributes else 0)
        bodies = [body for _, body in subgraphs(node.attribute)]
        results = [value.name for body in bodies for value in body.output]
        if node.op_type == "Loop":
            conditions = (*node.input[1:2], *results[:1])
            self._limit(self._union(self._dependencies, conditions), UNKNOWN_ROWS)
        for body in bodies:
            for position, value in enumerate(body.input):
                for table in (self._dependencies, self._origins):
                    self._add(table, [value.name], _sources(node, body, position))
            self.read(body)
        sources = [*node.input, *results]
        self._add(self._dependencies, node.output, sources)
        self._add(self._origins, _free_outputs(node), sources)
        keeps = node.op_type != "Cast" or attributes["to"].i in WHOLE
        data = node.input if node.op_type == "Concat" else node.input[:1]
        if node.op_type in MOVES and keeps and self._moved.issuperset(data):
            self._moved.update(node.output)

    def _add(self, table: Inputs, names: Iterable[str], sources: Iterable[str]) -> None:
        """Note that values depend on what their sources depend on."""
        inputs = self._union(table, sources)
        for name in filter(None, names if inputs else ()):
            table[name] = inputs | table.get(name, frozenset())

    def _mark(self, node: onnx.NodeProto, axis: int) -> None:
        """Set the limits of the inputs behind the indices that a node reads."""
        operator = operator_of(node)
        if domain_name(node.domain) in DOMAINS:
            indices = [node.input[i] for i in INDICES.get(operator, ()) if i < len(node.input)]
        else:
            indices = [name for name in node.input if name in self._moved]
        rows = UNKNOWN_ROWS
        if operator == ("", "Gather"):
            extents = self._extents.get(node.input[0], ())
            rows = extents[axis] if -len(extents) <= axis < len(extents) else UNKNOWN_ROWS
        for name in indices:
            limit = rows if name in self._moved else UNKNOWN_ROWS
            self._limit(self._origins.get(name, frozenset()), limit)

    def _limit(self, inputs: frozenset[str], limit: int) -> None:
        for name in inputs:
            self.limits[name] = min(limit, self.limits.get(name, limit))

    def _union(self, table: Inputs, names: Iterable[str]) -> frozenset[str]:
        return frozenset[str]().union(*(table.get(name, ()) for name in names))


def _free_outputs(node: onnx.NodeProto) -> Sequence[str]:
    """Return the outputs that may be any number."""
    if node.op_type in BOUNDED:
        return ()
    return list(node.output[:1] if node.op_type in WITH_INDICES else node.output)


def _sources(node: onnx.NodeProto, body: onnx.GraphProto, position: int) -> list[str]:
    """Return what an input of a body may be: an input of the node, or an earlier result.

    A Loop reads trip count, condition and values. Its body reads iteration number, condition and
    values, and returns condition and values. The number is below the trip count. A Scan and its
    body have inputs and outputs in the same order.
    """
    if node.op_type not in ("Loop", "Scan"):
        return [*node.input]
    later = position - 1 if node.op_type == "Loop" else position
    if later < 0:
        return []
    return [*node.input[position : position + 1], *(v.name for v in body.output[later : later + 1])]
