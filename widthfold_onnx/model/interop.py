"""Take a model in the form of its owner, and give another one back in the same form.

The forms are a file, a ModelProto, a Model of onnx_ir and a Graph of onnx-graphsurgeon. No other
module imports onnx-graphsurgeon. That library drops metadata, documentation and more whenever it
exports a graph. So a Graph that was folded carries no record of its folds, and is folded like any
other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx

from widthfold_onnx.errors import UsageError
from widthfold_onnx.model.check import checked
from widthfold_onnx.model.library import ir
from widthfold_onnx.model.linking import bodies, values_of
from widthfold_onnx.model.loader import Model, load


@dataclass(frozen=True)
class ModelHandle:
    """A model in the form in which its owner holds it.

    Attributes:
        reader: returns the model as a checked message, with the folder of its external data; it is
            called at the first use of `model`.
        give: converts a message to the owner's form; the message of `model` itself becomes the
            owner's object, if the model was no file.
        path: its file; None for a model in memory.
    """

    reader: Callable[[], Model]
    give: Callable[[onnx.ModelProto], Any]
    path: Path | None = None

    @cached_property
    def model(self) -> Model:
        """The model as a message, read on first use; it is never changed."""
        return self.reader()


def handle_of(model: Any) -> ModelHandle:
    """Return the handle of a model of any kind.

    Args:
        model: the path of a model file, an `onnx.ModelProto`, an `onnx_ir.Model` or an
            `onnx_graphsurgeon.Graph`.

    Raises:
        UsageError: a model of another kind, or a file that cannot be read.
        InvalidModelError: the model is broken or not supported.
    """
    if isinstance(model, Path | str):
        return _file(Path(model))
    if isinstance(model, onnx.ModelProto):
        loaded = checked(model, None)
        return ModelHandle(
            lambda: Model(loaded, None), lambda proto: model if proto is loaded else proto
        )
    if isinstance(model, ir.Model):
        return _ir_model(model)
    gs = sys.modules.get("onnx_graphsurgeon")
    if gs is not None and isinstance(model, gs.Graph):
        return _gs_graph(model)
    raise UsageError(
        "a model is a path, an onnx.ModelProto, an onnx_ir.Model or an onnx_graphsurgeon.Graph, "
        f"not {type(model).__name__}"
    )


def _file(path: Path) -> ModelHandle:
    """Return the handle of a model file, which gives back a message with all data inside."""

    def give(proto: onnx.ModelProto) -> onnx.ModelProto:
        onnx.load_external_data_for_model(proto, str(path.parent))
        return proto

    def read() -> Model:
        loaded = load(path)
        return Model(loaded.proto, loaded.folder, name=loaded.name)

    return ModelHandle(read, give, path)


def _ir_model(model: ir.Model) -> ModelHandle:
    """Return the handle of an `onnx_ir.Model`.

    Tensors that are not folded are shared with the model that is given back, and the `meta` of all
    that stays is kept.
    """
    folders = {Path(t.base_dir) for t in _tensors(model) if isinstance(t, ir.ExternalTensor)}
    loaded_model = model if len(folders) < 2 else ir.external_data.load_to_model(model.clone())
    folder = folders.pop() if len(folders) == 1 else None
    original = checked(ir.to_proto(loaded_model), folder)

    def give(proto: onnx.ModelProto) -> ir.Model:
        if proto is original:
            return model
        new = ir.from_proto(proto)
        ir.external_data.set_base_dir(new.graph, folder or "")
        _keep(model.graph, new.graph)
        for key, function in new.functions.items():
            _keep(model.functions[key].graph, function.graph)
        new.meta.update(model.meta)
        return new

    return ModelHandle(lambda: Model(original, folder), give)


def _gs_graph(graph: Any) -> ModelHandle:
    """Return the handle of an `onnx_graphsurgeon.Graph`."""
    import onnx_graphsurgeon as gs  # noqa: TID251 - this module is the door

    original = checked(gs.export_onnx(graph), None)
    return ModelHandle(
        lambda: Model(original, None),
        lambda proto: graph if proto is original else gs.import_onnx(proto),
    )


def _keep(old: ir.Graph, new: ir.Graph) -> None:
    """Give the unchanged parts of a graph their former `meta` and tensors."""
    new.meta.update(old.meta)
    for name, value in new.initializers.items():
        if name in old.initializers:
            value.const_value = old.initializers[name].const_value
    old_values = {value.name: value for value in values_of(old)}
    for value in values_of(new):
        if value.name in old_values:
            value.meta.update(old_values[value.name].meta)
    nodes = {tuple(value.name for value in node.outputs): node for node in old}
    for node in new:
        old_node = nodes.get(tuple(value.name for value in node.outputs))
        if old_node is None or old_node.op_identifier() != node.op_identifier():
            continue
        node.meta.update(old_node.meta)
        for old_body, new_body in zip(bodies(old_node), bodies(node), strict=True):
            _keep(old_body, new_body)


def _tensors(model: ir.Model) -> Iterator[ir.TensorProtocol | None]:
    for graph in model.graphs():
        yield from (value.const_value for value in graph.initializers.values())
        for node in graph:
            for attribute in node.attributes.values():
                if attribute.type is ir.AttributeType.TENSOR:
                    yield attribute.as_tensor()
