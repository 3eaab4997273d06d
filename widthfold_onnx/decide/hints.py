"""Find options that would fold a refused site.

A hint is an option: it freezes weights, fixes extents, extends them, or lets samples mix. Each was
tried before it is named, except --freeze-weights. A site is planned with each suggestion as if the
caller had given it; only suggestions that give a form are named. Suggested sizes are round numbers
that the factor divides even behind some strides, if the model runs at them, and sizes that were
found by running it. A model in memory is not run: all suggested sizes are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice, product
from pathlib import Path
from shlex import quote

from widthfold_onnx.arrays import Dims
from widthfold_onnx.decide.decisions import Decision
from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.model.document import Value
from widthfold_onnx.model.proto.dims import dims_of
from widthfold_onnx.model.proto.walk import inputs
from widthfold_onnx.model.shapes.table import ShapeTable
from widthfold_onnx.options import MIN_FACTOR, FoldOptions, Shapes, Sizes, Values
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rewrite.reading import Reading
from widthfold_onnx.rules.layer_reading import unknown_since
from widthfold_onnx.rules.layers import ProductLayer, Site
from widthfold_onnx.rules.selection import preferred_form
from widthfold_onnx.runtime.child import isolated
from widthfold_onnx.runtime.inputs.sizes import runs_at
from widthfold_onnx.text import printable

UNREAD = frozenset({Code.UNKNOWN_EXTENT, Code.UNKNOWN_SHAPE})
"""Codes of sites that cannot be read because an extent is unknown."""

OVERRIDABLE = frozenset({Code.WEIGHT_OVERRIDABLE, Code.BIAS_OVERRIDABLE})
"""Codes of sites whose weight or bias is an input of the model with a default value."""

UNDIVIDED = frozenset({Code.FACTOR_DOES_NOT_DIVIDE, Code.TOO_SHORT})
"""Codes of sites with too few positions for the factor."""

FREEZE = "--freeze-weights"
RAGGED = "--ragged"
FIXED = "--fixed-shapes"
MIX = "--mix-samples"

ROUND = 32
"""Suggested extents divided by the factor: behind five strides of 2 a multiple of it is left."""

SizeFinder = Callable[[Sizes], Sizes]
"""Given suggested sizes, returns those at which the model runs, then others that a search found."""


def size_finder_of(model: Path, cases: Sequence[Values]) -> SizeFinder:
    """Return a finder that runs a model file in a child process.

    It finds no sizes without a runtime.
    """

    def runnable_sizes(suggested: Sizes) -> Sizes:
        try:
            return isolated(runs_at, model, cases, suggested)
        except UnverifiedError:
            return ()

    return runnable_sizes


class Hints:
    """Hints for the sites of one model.

    Args:
        reading: the model.
        options: the options that were planned with.
        size_finder: finds sizes at which the model runs; None tries all suggested ones.
    """

    def __init__(
        self, reading: Reading, options: FoldOptions, size_finder: SizeFinder | None
    ) -> None:
        self._reading = reading
        self._size_finder = size_finder
        if options.is_measured:
            options = replace(options, ragged=True, factor=MIN_FACTOR)
        self._options = options
        self._factor = options.factor or 1

    def of(self, decision: Decision) -> str:
        """Return the options that would fold a refused site; "" where none that was tried does."""
        site, layer, refusal = decision.site, decision.layer, decision.answer
        if not isinstance(refusal, Refusal):
            return ""
        if refusal.code in OVERRIDABLE:
            return f"{FREEZE} makes it a constant, which the runtime packs and fuses, too"
        may_fold = refusal.code in UNREAD if layer is None else refusal.code.is_of_a_form
        if not may_fold:
            return ""
        is_open = layer is None or None in layer.planned_shape
        hints = self._shapes(site, self._options) if is_open else []
        mixing_options = replace(self._options, mix_samples=True)
        if refusal.code in UNDIVIDED:
            if self._folds(site, self._reading.planned_shapes, replace(self._options, ragged=True)):
                hints.append(RAGGED)
        elif refusal.code == Code.MIXES_SAMPLES and self._folds(
            site, self._reading.planned_shapes, mixing_options
        ):
            hints.append(MIX)
        elif is_open and not hints and isinstance(layer, ProductLayer):
            hints = self._shapes(site, mixing_options, f" {MIX}")
        elif refusal.code == Code.SEVERAL_UNKNOWN_EXTENTS and len(self._options.input_shapes) == 1:
            fixed_options = replace(self._options, fixed_shapes=True)
            if is_open:
                hints = hints or self._shapes(site, fixed_options, f" {FIXED}")
            elif self._folds(site, self._reading.planned_shapes, fixed_options):
                hints.append(FIXED)
        if hints:
            return f"{' or '.join(hints)} folds it"
        return self._origin(site) if is_open and refusal.code is not Code.UNKNOWN_SHAPE else ""

    def _origin(self, site: Site) -> str:
        """Name the operator behind which the extents of a site are known at no size, or ""."""
        table = self._suggested[-1][1] if self._suggested else self._reading.planned_shapes

        def is_known(value: Value) -> bool:
            return table.extents(site.scope.path, value.name or "") is not None

        unknown = (v for v in site.node.inputs if v is not None and not is_known(v))
        operand = next(unknown, None)
        return "" if operand is None else unknown_since(operand, is_known)

    def _shapes(self, site: Site, options: FoldOptions, suffix: str = "") -> list[str]:
        """Return the first suggested shapes that fold a site, as options; [] where none does.

        `suffix` names the other options that are tried.
        """
        fit = (s for s, table in self._suggested if self._folds(site, table, options))
        return [_as_options(shapes) + suffix for shapes in islice(fit, 1)]

    def _folds(self, site: Site, table: ShapeTable, options: FoldOptions) -> bool:
        layer = self._reading.layer_at(site, table, is_fixed=options.fixed_shapes)
        if isinstance(layer, Refusal):
            return False
        return not isinstance(preferred_form(layer, options), Refusal)

    @cached_property
    def _suggested(self) -> list[tuple[Shapes, ShapeTable]]:
        """Suggested sizes, and the shapes of all values at them.

        They are suggested for one input at a time, then for all: with one sample, then `factor`,
        then many for matrices alone, whose rows may be positions.
        """
        demanded = self._options.input_shapes[0]
        proto = self._reading.document.proto
        open_inputs = {
            value.name: dims
            for value in inputs(proto)
            if (dims := dims_of(value)) is not None and None in dims and value.name not in demanded
        }
        groups = [[name] for name in open_inputs]
        groups += [list(open_inputs)] if len(open_inputs) > 1 else []
        sizes: Sizes = tuple(
            {**demanded, **{name: self._shape_of(open_inputs[name], samples) for name in names}}
            for samples, names in product((1, self._factor, ROUND * self._factor), groups)
            if samples <= self._factor or all(len(open_inputs[name]) == 2 for name in names)
        )
        if sizes and self._size_finder is not None:
            sizes = self._size_finder(sizes)
        return [
            ({n: s for n, s in shapes.items() if n in open_inputs}, ShapeTable(proto, shapes))
            for i, shapes in enumerate(sizes)
            if shapes not in sizes[:i]
        ]

    def _shape_of(self, dims: Dims, samples: int) -> tuple[int, ...]:
        sizes = (samples if i == 0 else ROUND * self._factor for i in range(len(dims)))
        return tuple(size if e is None else e for e, size in zip(dims, sizes, strict=True))


def _as_options(shapes: Shapes) -> str:
    """Return shapes as options that a shell takes."""
    words = [f"{printable(name)}:{','.join(map(str, shape))}" for name, shape in shapes.items()]
    return " ".join(f"--input-shape {quote(word)}" for word in words)
