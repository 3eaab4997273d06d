"""What would unlock a site that is refused for an open extent: every hint was tried.

A suggested shape is planned with like one that the caller gives, and only named where the site has
a form then. Suggested sizes are round numbers that the factor divides even behind some strides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from itertools import product

from widthfold_onnx.model.declared import Dims, dims_of
from widthfold_onnx.model.graph import Document
from widthfold_onnx.model.shapes import ShapeTable
from widthfold_onnx.options import FoldOptions, Shapes
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rules import LINEAR
from widthfold_onnx.rules.base import LinearSite, Reformulation, Site
from widthfold_onnx.rules.conv import PROGRESS, reformulate
from widthfold_onnx.text import printable

UNREAD = frozenset({"unknown-extent", "unknown-shape"})
"""Codes of sites that cannot be read for want of an extent."""

GUARD = "--guard-shapes"

SMALLEST_FACTOR = 2
"""What is tried where the factor is measured."""

ROUND = 32
"""Suggested extents are so many times the factor: five strides of 2 leave a multiple of it."""


class Hints:
    """Hints for the sites of one model.

    Args:
        document: the model.
        options: what was planned with.
    """

    def __init__(self, document: Document, options: FoldOptions) -> None:
        self._document = document
        self._options = replace(options, ragged=True) if options.factor is None else options
        self._factor = options.factor or SMALLEST_FACTOR

    def of(self, site: Site, conv: LinearSite | None, refusal: Refusal) -> str:
        """What would unlock a refused site, as the options to give; "" where nothing tried does.

        Args:
            site: the site.
            conv: the same, if it could be read.
            refusal: why it is refused.
        """
        opened = conv is None or None in conv.planned
        if not opened or refusal.code not in (UNREAD if conv is None else PROGRESS):
            return ""
        guarded = replace(self._options, guard_shapes=True)
        found = [self._shapes(site, self._options, "")]
        if not self._options.guard_shapes:
            alone = self._folds(site, self._document.shapes, guarded)
            found += [GUARD] if alone else []
            found += [] if any(found) else [self._shapes(site, guarded, f" {GUARD}")]
        ways = " or ".join(way for way in found if way)
        return f"{ways} folds it" if ways else ""

    def _shapes(self, site: Site, options: FoldOptions, more: str) -> str:
        """The first suggested shapes with which a site folds, as options; "" where none does."""
        for shapes, table in self._tables:
            if self._folds(site, table, options):
                return _shown(shapes) + more
        return ""

    def _folds(self, site: Site, planned: ShapeTable, options: FoldOptions) -> bool:
        def dims(table: ShapeTable, name: str | None) -> Dims | None:
            return table.get(site.scope.path, name or "")

        read = LINEAR[site.op](
            self._document,
            site,
            lambda value: dims(self._document.shapes, value.name),
            lambda value: dims(planned, value.name),
        )
        if isinstance(read, Refusal):
            return False
        return isinstance(reformulate(read, options, self._factor), Reformulation)

    @cached_property
    def _tables(self) -> list[tuple[Shapes, ShapeTable]]:
        """Suggested shapes, and what they mean for every value."""
        proto = self._document.proto
        return [
            (shapes, ShapeTable(proto, {**self._options.input_shapes, **shapes}))
            for shapes in self._suggested()
        ]

    def _suggested(self) -> Iterator[Shapes]:
        """One input at a time, then all of them, with one sample and with as many as the factor."""
        held = {tensor.name for tensor in self._document.proto.graph.initializer}
        inputs = {
            value.name: dims
            for value in self._document.proto.graph.input
            if (dims := dims_of(value)) is not None
            and None in dims
            and value.name not in held
            and value.name not in self._options.input_shapes
        }
        chosen = [[name] for name in inputs] + ([list(inputs)] if len(inputs) > 1 else [])
        for samples, names in product((1, self._factor), chosen):
            yield {name: self._sized(inputs[name], samples) for name in names}

    def _sized(self, dims: Dims, samples: int) -> tuple[int, ...]:
        sizes = (samples if i == 0 else ROUND * self._factor for i in range(len(dims)))
        return tuple(size if e is None else e for e, size in zip(dims, sizes, strict=True))


def _shown(shapes: Shapes) -> str:
    return " ".join(
        f"--input-shape {printable(name)}:{','.join(map(str, shape))}"
        for name, shape in shapes.items()
    )
