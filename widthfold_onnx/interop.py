"""Hold a model whichever library holds it: a file, a ModelProto, onnx_ir or onnx-graphsurgeon.

No other module imports onnx-graphsurgeon. That library itself drops metadata, documentation and
more when it exports a graph, independent of the fold. So a folded graph of it carries no sign of
its folds, and is folded like any other.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx

from widthfold_onnx.errors import UsageError
from widthfold_onnx.model.check import check_model
from widthfold_onnx.model.graph.library import ir
from widthfold_onnx.model.graph.messages import bodies, values_of
from widthfold_onnx.model.loader import load


class Held(ABC):
    """A model in the form in which its owner holds it.

    Attributes:
        name: name of its file, or of a file for it.
        path: its file; None for a model in memory.
        proto: the model as a checked message, which stays as it is.
        folder: the folder of its external data; None where it has none.
    """

    name: str = "model.onnx"
    path: Path | None = None
    folder: Path | None = None
    proto: onnx.ModelProto

    @abstractmethod
    def give(self, proto: onnx.ModelProto) -> Any:
        """Return another model in the same form; the owner's own object if it is `proto`."""


def hold(model: Any) -> Held:
    """Return a model of any kind as a message, and the way back.

    Args:
        model: the path of a model file, an `onnx.ModelProto`, an `onnx_ir.Model` or an
            `onnx_graphsurgeon.Graph`.

    Raises:
        UsageError: a model of another kind, or a file that cannot be read.
        InvalidModelError: the model is broken or not supported.
    """
    if isinstance(model, Path | str):
        return _File(Path(model))
    if isinstance(model, onnx.ModelProto):
        return _Message(model)
    if isinstance(model, ir.Model):
        return _IrModel(model)
    gs = sys.modules.get("onnx_graphsurgeon")
    if gs is not None and isinstance(model, gs.Graph):
        return _GsGraph(model)
    raise UsageError(
        "a model is a path, an onnx.ModelProto, an onnx_ir.Model or an onnx_graphsurgeon.Graph, "
        f"not {type(model).__name__}"
    )


class _File(Held):
    """A model file; it gives back a message with all data inside."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name
        self.folder = path.parent

    @cached_property
    def proto(self) -> onnx.ModelProto:  # type: ignore[override] # read only where it is needed
        """The model, read on first use."""
        assert self.path is not None
        return load(self.path).proto

    def give(self, proto: onnx.ModelProto) -> onnx.ModelProto:
        """Return another model in the same form."""
        onnx.load_external_data_for_model(proto, str(self.folder))
        return proto


class _Message(Held):
    """A ModelProto."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        check_model(proto, None)
        self.proto = proto

    def give(self, proto: onnx.ModelProto) -> onnx.ModelProto:
        """Return another model in the same form."""
        return proto


class _IrModel(Held):
    """An `onnx_ir.Model`.

    Tensors that are not folded are shared with the model that is given back, and the `meta` of all
    that stays is kept.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        folders = {Path(t.base_dir) for t in _tensors(model) if isinstance(t, ir.ExternalTensor)}
        whole = model if len(folders) < 2 else ir.external_data.load_to_model(model.clone())
        self.folder = folders.pop() if len(folders) == 1 else None
        self.proto = ir.to_proto(whole)
        check_model(self.proto, self.folder)

    def give(self, proto: onnx.ModelProto) -> ir.Model:
        """Return another model in the same form."""
        if proto is self.proto:
            return self._model
        model, new = self._model, ir.from_proto(proto)
        ir.external_data.set_base_dir(new.graph, self.folder or "")
        _keep(model.graph, new.graph)
        for key, function in new.functions.items():
            _keep(model.functions[key].graph, function.graph)
        new.meta.update(model.meta)
        return new


class _GsGraph(Held):
    """An `onnx_graphsurgeon.Graph`."""

    def __init__(self, graph: Any) -> None:
        import onnx_graphsurgeon as gs  # noqa: TID251 - this module is the door

        self._graph = graph
        self.proto = gs.export_onnx(graph)
        check_model(self.proto, None)

    def give(self, proto: onnx.ModelProto) -> Any:
        """Return another model in the same form."""
        import onnx_graphsurgeon as gs  # noqa: TID251 - this module is the door

        return self._graph if proto is self.proto else gs.import_onnx(proto)


def _keep(old: ir.Graph, new: ir.Graph) -> None:
    """Give the unchanged parts of a graph their former `meta` and tensors."""
    new.meta.update(old.meta)
    for name, value in new.initializers.items():
        if name in old.initializers:
            value.const_value = old.initializers[name].const_value
    before = {value.name: value for value in values_of(old)}
    for value in values_of(new):
        if value.name in before:
            value.meta.update(before[value.name].meta)
    nodes = {tuple(value.name for value in node.outputs): node for node in old}
    for node in new:
        same = nodes.get(tuple(value.name for value in node.outputs))
        if same is None or same.op_identifier() != node.op_identifier():
            continue
        node.meta.update(same.meta)
        for old_body, new_body in zip(bodies(same), bodies(node), strict=True):
            _keep(old_body, new_body)


def _tensors(model: ir.Model) -> Iterator[ir.TensorProtocol | None]:
    for graph in model.graphs():
        yield from (value.const_value for value in graph.initializers.values())
        for node in graph:
            for attribute in node.attributes.values():
                if attribute.type is ir.AttributeType.TENSOR:
                    yield attribute.as_tensor()
