"""Fold a model whichever library holds it: a file, a ModelProto, onnx_ir or onnx-graphsurgeon.

`fold` is the one call for all of them; `planning.fold_model` does the work. No other module imports
onnx-graphsurgeon. That library itself drops metadata, documentation and more when it exports a
graph, independent of the fold. So a folded graph of it carries no sign of its folds, and is folded
like any other.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx

from widthfold_onnx.errors import CheckFailedError, UnverifiedError, UsageError
from widthfold_onnx.evidence.proof.compare import proved
from widthfold_onnx.evidence.proof.program import program
from widthfold_onnx.model.graph.library import ir
from widthfold_onnx.model.graph.traversal import bodies, values_of
from widthfold_onnx.model.proto.frozen import frozen
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.pipeline import optimize
from widthfold_onnx.planning import fold_model
from widthfold_onnx.results import OptimizeReport, SiteReport

FACTOR = 8
"""Positions that become channels where nothing else is asked for."""


def fold(
    model: Any,
    factor: int = FACTOR,
    *,
    options: FoldOptions | None = None,
    out: Path | str | None = None,
    prove: bool = True,
) -> Any:
    """Fold every layer that can be folded, and return the same kind of model.

    Args:
        model: the path of a model file, an `onnx.ModelProto`, an `onnx_ir.Model` or an
            `onnx_graphsurgeon.Graph`; it stays as it is.
        factor: positions per channel that become channels.
        options: other options of the fold; its factor counts instead of `factor`.
        out: where the folded file goes, for a path; `pipeline.optimize` verifies and writes it.
        prove: prove a model in memory equal to `model`, which runs nothing of it.

    Returns:
        The path `out`, or a model of the type of `model`: itself if nothing is changed.

    Raises:
        UsageError: an option that does not fit, or a model of another type.
        InvalidModelError: the model is broken or not supported.
        CheckFailedError: the folded model is not equal: a fault of widthfold.
        UnverifiedError: it cannot be shown to be equal.
    """
    options = options or FoldOptions(factor=factor)
    if isinstance(model, Path | str):
        return _fold_file(Path(model), out, options)
    if out is not None:
        raise UsageError("out is for a model that is given by its path")
    if isinstance(model, ir.Model):
        return fold_ir(model, options, prove=prove)[0]
    if isinstance(model, onnx.ModelProto):
        return _folded(model, options, None, prove=prove)[0]
    gs = sys.modules.get("onnx_graphsurgeon")
    if gs is not None and isinstance(model, gs.Graph):
        return fold_graph(model, options, prove=prove)[0]
    raise UsageError(
        "fold takes a path, an onnx.ModelProto, an onnx_ir.Model or an onnx_graphsurgeon.Graph, "
        f"not {type(model).__name__}"
    )


def fold_ir(
    model: ir.Model, options: FoldOptions, *, prove: bool = True
) -> tuple[ir.Model, list[SiteReport]]:
    """Fold an `onnx_ir.Model`.

    Tensors that are not folded are shared with `model`, and the `meta` of all that stays is kept.

    Args:
        model: the model; it stays as it is.
        options: which sites, how far, in which form.
        prove: prove the result equal.

    Returns:
        A new model, or `model` itself if nothing is changed, and the outcome of every site.

    Raises:
        UsageError: an option that does not fit.
        InvalidModelError: the model is broken or not supported.
        CheckFailedError: the folded model is not equal: a fault of widthfold.
        UnverifiedError: it cannot be shown to be equal.
    """
    folders = {Path(t.base_dir) for t in _tensors(model) if isinstance(t, ir.ExternalTensor)}
    whole = model if len(folders) < 2 else ir.external_data.load_to_model(model.clone())
    folder = folders.pop() if len(folders) == 1 else None
    proto = ir.to_proto(whole)
    folded, sites = _folded(proto, options, folder, prove=prove)
    if folded is proto:
        return model, sites
    new = ir.from_proto(folded)
    ir.external_data.set_base_dir(new.graph, folder or "")
    _keep(model.graph, new.graph)
    for key, function in new.functions.items():
        _keep(model.functions[key].graph, function.graph)
    new.meta.update(model.meta)
    return new, sites


def fold_graph(
    graph: Any, options: FoldOptions, folder: Path | None = None, *, prove: bool = True
) -> tuple[Any, list[SiteReport]]:
    """Fold an `onnx_graphsurgeon.Graph`.

    Args:
        graph: the graph; it stays as it is.
        options: which sites, how far, in which form.
        folder: where its external data lies.
        prove: prove the result equal.

    Returns:
        A new graph, or `graph` itself if nothing is changed, and the outcome of every site.

    Raises:
        UsageError: onnx-graphsurgeon is not installed, or `graph` is none of its graphs.
        InvalidModelError: the graph is broken or not supported.
        CheckFailedError: the folded graph is not equal: a fault of widthfold.
        UnverifiedError: it cannot be shown to be equal.
    """
    try:
        import onnx_graphsurgeon as gs  # noqa: TID251 - this module is the door
    except ImportError as error:
        raise UsageError("fold_graph needs onnx-graphsurgeon: pip install it") from error
    if not isinstance(graph, gs.Graph):
        raise UsageError(f"fold_graph takes an onnx_graphsurgeon.Graph, not {type(graph).__name__}")
    proto = gs.export_onnx(graph)
    folded, sites = _folded(proto, options, folder, prove=prove)
    return graph if folded is proto else gs.import_onnx(folded), sites


def check_written(report: OptimizeReport) -> None:
    """Check that a model was written, for it passed verification.

    Raises:
        CheckFailedError: it is not equal.
        UnverifiedError: it cannot be shown to be equal.
    """
    if report.written is None:
        assert report.verification is not None
        failed = report.verification.verdict == "fail"
        reasons = "; ".join(report.verification.reasons)
        raise CheckFailedError(reasons) if failed else UnverifiedError(reasons)


def _fold_file(model: Path, out: Path | str | None, options: FoldOptions) -> Path:
    if out is None:
        raise UsageError(
            "for a model that is given by its path, say where the folded file goes: out"
        )
    check_written(optimize(model, out, options))
    return Path(out)


def _folded(
    proto: onnx.ModelProto, options: FoldOptions, folder: Path | None, *, prove: bool
) -> tuple[onnx.ModelProto, list[SiteReport]]:
    """Fold a model in memory as `fold_model` does, and prove the result equal."""
    folded, sites = fold_model(proto, options, folder)
    if prove and folded is not proto:
        original = frozen(proto) if options.freeze_weights else proto
        old, new = (program(model, folder) for model in (original, folded))
        proof = proved(old, new, options.input_shapes, {})
        if proof.verdict == "different":
            raise CheckFailedError(f"proof: different: {proof.reason}")
        if proof.verdict != "equal":
            raise UnverifiedError(f"proof: {proof.verdict}: {proof.reason}")
    return folded, sites


def _keep(old: ir.Graph, new: ir.Graph) -> None:
    """Give what stayed in a graph its `meta` and its tensors of before."""
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
        for one, other in zip(bodies(same), bodies(node), strict=True):
            _keep(one, other)


def _tensors(model: ir.Model) -> Iterator[ir.TensorProtocol | None]:
    for graph in model.graphs():
        yield from (value.const_value for value in graph.initializers.values())
        for node in graph:
            for attribute in node.attributes.values():
                if attribute.type is ir.AttributeType.TENSOR:
                    yield attribute.as_tensor()
