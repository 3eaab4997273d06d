"""Check that a parsed model can be rewritten, in time linear in its size.

The public checker of onnx leaves gaps: data of the wrong size, unknown opsets, duplicate names of
nodes. It refuses some models that run: nodes in any order, outputs without a type or shape, graphs
without a name, operators of com.microsoft without an import. It copies a whole model twice. So the
rules are here, and the public checker runs on a small copy (`skeleton`), in which what runs anyway
is put right.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, TensorProto, helper

from widthfold_onnx.errors import InvalidModelError
from widthfold_onnx.model.proto.functions import (
    FunctionKey,
    call_key,
    check_inlining,
    function_key,
)
from widthfold_onnx.model.proto.hiding import with_own_names
from widthfold_onnx.model.proto.scope import (
    NameScope,
    checked_text,
    describe_node,
    function_scope,
    graph_scope,
    is_text,
)
from widthfold_onnx.model.proto.tensors import (
    DTYPES,
    check_declaration,
    check_external,
    check_inline,
    describe,
    is_external,
)
from widthfold_onnx.model.proto.walk import (
    FLAGS,
    StoredTensor,
    all_tensors,
    domain_name,
    operator_of,
    opsets_of,
)
from widthfold_onnx.model.runtime_operators import may_be_run
from widthfold_onnx.model.shapes.inference import check_inferable
from widthfold_onnx.text import printable, quoted


def parse(data: bytes) -> onnx.ModelProto:
    """Parse the message of a model, which `checked` has still to check.

    Args:
        data: bytes that `loader.scan_wire` has passed.

    Raises:
        InvalidModelError: the parser refuses it.
    """
    try:
        model = onnx.ModelProto()
        model.ParseFromString(data)
    except DecodeError as error:
        raise InvalidModelError(f"not an ONNX protobuf: {printable(str(error))}") from error
    return model


def checked(model: onnx.ModelProto, folder: Path | None) -> onnx.ModelProto:
    """Check a parsed model; `loader.scan_wire` has bounded its size and its depth.

    Args:
        model: the model; it is not changed.
        folder: the folder of its file, for external data; None allows no external data.

    Returns:
        The model; a copy with other names if a body hides names (`proto.hiding`).

    Raises:
        InvalidModelError: the first defect found, in one line that says where it is.
    """
    _check_header(model)
    check_inlining(model)
    for tensor in all_tensors(model):
        _check_tensor(tensor, folder)
    functions = {function_key(function) for function in model.functions}
    _NodeChecker(_opsets(model.opset_import), functions).check(graph_scope(model.graph))
    for function in model.functions:
        opsets = _opsets(function.opset_import)
        _NodeChecker(opsets, functions).check(function_scope(function))
    _check_with_onnx(model)
    return with_own_names(model)


def _check_header(model: onnx.ModelProto) -> None:
    if not 1 <= model.ir_version <= onnx.IR_VERSION:
        raise InvalidModelError(f"IR version {model.ir_version}, known are 1 to {onnx.IR_VERSION}")
    if not model.HasField("graph"):
        raise InvalidModelError("the model has no graph")
    for name in (model.producer_name, model.producer_version, model.domain):
        checked_text(name, "producer or domain of the model")
    _check_notes(model)
    if not model.opset_import and model.ir_version >= 3:
        raise InvalidModelError("the model imports no operator set")


@lru_cache(maxsize=1)
def _newest_opsets() -> Mapping[str, int]:
    newest: dict[str, int] = {"": onnx.defs.onnx_opset_version()}
    for schema in onnx.defs.get_all_schemas_with_history():
        newest[schema.domain] = max(newest.get(schema.domain, 0), schema.since_version)
    return newest


def _opsets(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """Return the imported version of each domain; domains unknown to onnx are accepted."""
    opsets: dict[str, int] = {}
    for item in imports:
        domain = domain_name(checked_text(item.domain, "operator domain"))
        domain_text = quoted(domain or "ai.onnx")
        if opsets.setdefault(domain, item.version) != item.version:
            raise InvalidModelError(f"two versions of operator set {domain_text} are imported")
        newest = _newest_opsets().get(domain)
        if newest is not None and not 1 <= item.version <= newest:
            raise InvalidModelError(
                f"opset {item.version} of {domain_text} is unknown, known are 1 to {newest}"
            )
    # Before IR version 3 there was one operator set, which models did not state.
    return opsets or {"": 1}


@lru_cache(maxsize=4096)
def _is_op(op_type: str, domain: str, opset: int) -> bool:
    return onnx.defs.has(op_type, max_inclusive_version=opset, domain=domain)


def _is_foreign(op_type: str, domain: str, opset: int) -> bool:
    """Check whether onnx lacks an operator that a runtime may have."""
    return domain not in _newest_opsets() or (not domain and may_be_run(op_type, opset))


def _check_tensor(tensor: onnx.TensorProto, folder: Path | None) -> None:
    checked_text(tensor.name, "tensor name")
    _check_notes(tensor)
    if is_external(tensor):
        check_external(tensor, folder)
    else:
        check_declaration(tensor)
        check_inline(tensor)


class _NodeChecker:
    """Checks the nodes of one graph or function, with the operator sets that hold there."""

    def __init__(self, opsets: Mapping[str, int], functions: set[FunctionKey]) -> None:
        self._opsets = opsets
        self._functions = functions
        self._visible: ChainMap[str, StoredTensor | None] = ChainMap()

    def check(self, scope: NameScope) -> None:
        """Check the main graph or a local function, which sees no value of the graph."""
        _check_nothing_captured(scope)
        self._check_scope(scope, in_function=scope.graph is None)

    def _check_scope(
        self, scope: NameScope, *, in_function: bool, captured: Collection[str] = ()
    ) -> None:
        """Check a scope in running order; `_visible` holds the names of enclosing scopes.

        Args:
            scope: a graph or function.
            in_function: whether it is a function, or in one.
            captured: the outer names that the bodies of its node read.
        """
        if scope.graph is not None:
            _check_interface(scope.graph)
            self._check_hidden(scope, {value.name for value in scope.graph.input}, captured)
        self._visible = self._visible.new_child()
        self._visible.update((name, scope.initializers.get(name)) for name in scope.declared)
        names: set[str] = set()
        for index, node in enumerate(scope.nodes):
            if node.name:
                if checked_text(node.name, "node name") in names:
                    raise InvalidModelError(f"two nodes are named {quoted(node.name)}")
                names.add(node.name)
            _check_notes(node)
            self._check_operator(node)
            _check_attributes(node, in_function=in_function)
            check_inferable(node)
            bodies = [inner for _, inner in scope.inner.get(index, ())]
            reads = {name for inner in bodies for name in inner.captured}
            for inner in bodies:
                self._check_scope(inner, in_function=in_function, captured=reads)
            for name in filter(None, node.output):
                if name in self._visible:
                    text = f"hides the value {quoted(name)} of an outer graph"
                    raise InvalidModelError(f"{describe_node(node)} {text}")
                self._visible[name] = None
        self._visible = self._visible.parents

    def _check_hidden(
        self, scope: NameScope, inputs: Collection[str], captured: Collection[str]
    ) -> None:
        """Check that it is clear which value is meant where a body hides a name.

        ONNX Runtime (1.32) and onnx take the value of the outer graph for an initializer of a body
        if another body of the node reads that value. It does not matter if both are equal: onnxslim
        0.1.98 writes an initializer again into the branch that reads it.
        """
        for name, tensor in scope.initializers.items():
            if name in self._visible and name in captured and name not in inputs:
                if tensor == self._visible[name]:
                    continue
                raise InvalidModelError(
                    f"an initializer of a subgraph hides the value {quoted(name)} of an outer "
                    "graph, which another branch reads: runtimes take either"
                )

    def _check_operator(self, node: onnx.NodeProto) -> None:
        op_type = checked_text(node.op_type, "operator")
        checked_text(node.overload, "operator overload")
        domain = domain_name(checked_text(node.domain, "operator domain"))
        if call_key(node) in self._functions:
            return
        opset = self._opsets.get(domain, 1 if domain == RUNTIME_DOMAIN else None)
        if opset is None:
            problem = f"domain {quoted(domain or 'ai.onnx')} is not imported"
        elif not (_is_op(op_type, domain, opset) or _is_foreign(op_type, domain, opset)):
            problem = f"no operator {quoted(op_type)} in opset {opset}"
        else:
            return
        raise InvalidModelError(f"{describe_node(node)}: {problem}")


def _check_nothing_captured(scope: NameScope) -> None:
    for name, reader in scope.captured.items():
        if reader == "a graph output":
            raise InvalidModelError(f"graph output {quoted(name)} is written by no node")
        raise InvalidModelError(f"{reader} reads {quoted(name)}, which nothing writes")


READ_TYPES = {
    **dict.fromkeys(FLAGS, AttributeProto.INT),
    **dict.fromkeys(
        ("border", "dilations", "kernel_shape", "pads", "strides"), AttributeProto.INTS
    ),
    **dict.fromkeys(("output_padding", "output_shape"), AttributeProto.INTS),
    "auto_pad": AttributeProto.STRING,
    "group": AttributeProto.INT,
    "Crop.scale": AttributeProto.INTS,
}
"""The types of attributes that are read here: onnx checks none of the runtime's own operators. An
operator is named, as in `Crop.scale`, if that attribute has another type in others."""


def _check_attributes(node: onnx.NodeProto, *, in_function: bool) -> None:
    names: set[str] = set()
    # A Constant, and ops of runtimes, may hold any bytes.
    domain, op_type = operator_of(node)
    has_words = domain == "" and op_type != "Constant"
    for attribute in node.attribute:
        name = checked_text(attribute.name, "attribute name")
        is_referring = checked_text(attribute.ref_attr_name, "attribute name") != ""
        if name in names:
            problem = f"two attributes named {quoted(name)}"
        elif has_words and not is_text(attribute.s):
            problem = f"attribute {quoted(name)} is not UTF-8"
        elif domain in ("", RUNTIME_DOMAIN) and _has_other_type(op_type, attribute):
            problem = f"attribute {quoted(name)} has another type than that of the operator"
        elif is_referring and not in_function:
            problem = f"attribute {quoted(name)} refers to a function that it is not in"
        else:
            names.add(name)
            continue
        raise InvalidModelError(f"{describe_node(node)}: {problem}")


def _has_other_type(op_type: str, attribute: AttributeProto) -> bool:
    """Check whether an attribute is not of the type in which it is read."""
    names = (attribute.name, f"{op_type}.{attribute.name}")
    expected_types = {READ_TYPES[name] for name in names if name in READ_TYPES}
    return bool(expected_types) and attribute.type not in {
        AttributeProto.UNDEFINED,
        *expected_types,
    }


def _check_notes(
    holder: onnx.ModelProto | onnx.GraphProto | onnx.NodeProto | onnx.TensorProto,
) -> None:
    """Check that doc string and metadata are valid UTF-8, without which they cannot be written."""
    checked_text(holder.doc_string, "doc string")
    for entry in holder.metadata_props:
        checked_text(entry.key, "metadata key")
        checked_text(entry.value, "metadata value")


def _check_interface(graph: onnx.GraphProto) -> None:
    _check_notes(graph)
    for sparse in graph.sparse_initializer:
        if any(dim < 0 for dim in sparse.dims):
            raise InvalidModelError(f"sparse {describe(sparse.values)}: a dim is negative")
    for kind, values in (
        ("graph input", graph.input),
        ("graph output", graph.output),
        ("value", graph.value_info),
    ):
        for value in values:
            if not value.type.HasField("tensor_type"):
                continue
            tensor = value.type.tensor_type
            subject = f"{kind} {quoted(value.name)}"
            checked_text(value.name, kind)
            if tensor.elem_type and tensor.elem_type not in DTYPES:
                raise InvalidModelError(f"{subject}: unknown element type {tensor.elem_type}")
            for dim in tensor.shape.dim:
                checked_text(dim.dim_param, "dim")
                if dim.dim_value < -1:  # a literal -1 occurs, and means an unknown size
                    raise InvalidModelError(f"{subject}: dim {dim.dim_value} is negative")


def _check_with_onnx(model: onnx.ModelProto) -> None:
    copy = skeleton(model)
    for value in copy.graph.output:
        if not value.HasField("type"):  # runtimes infer it
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    for value in (*copy.graph.input, *copy.graph.output):
        kind = value.type.WhichOneof("value")
        if kind == "tensor_type" and not value.type.tensor_type.HasField("shape"):
            value.type.tensor_type.shape.SetInParent()
    try:
        onnx.checker.check_model(copy)
    except onnx.checker.ValidationError as error:
        reason = printable(" ".join(str(error).split()))
        raise InvalidModelError(f"the checker of onnx refuses it: {reason}") from error


MAX_KEPT_BYTES = 1024

RUNTIME_DOMAIN = "com.microsoft"
"""Domain of ONNX Runtime's own operators, which it takes without an import."""

FOREIGN_DOMAIN = "widthfold.foreign"
"""Domain of a copied node whose operator onnx lacks in the default domain."""


def skeleton(model: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a model without its large constants: empty tensors of their types stand for them.

    Nodes come in an order that can run. Training graphs are left out.

    Args:
        model: dims are not negative, element types are known, and `scope.graph_scope` takes its
            graphs, as `check.checked` ensures.

    Raises:
        InvalidModelError: a graph that has no scope (`scope.graph_scope`).
    """
    # Below IR version 4 initializers had to be inputs as well, which runtimes do not ask for.
    copy = onnx.ModelProto(ir_version=max(model.ir_version, 4))
    # Runtimes take "ai.onnx" for "" as well, onnx's tools do not.
    imports = opsets_of(model.opset_import) or {"": 1}
    copy.opset_import.extend(helper.make_opsetid(*item) for item in imports.items())
    copy.opset_import.add(domain=FOREIGN_DOMAIN, version=1)
    if RUNTIME_DOMAIN not in imports:
        copy.opset_import.add(domain=RUNTIME_DOMAIN, version=1)
    _copy_graph(copy.graph, graph_scope(model.graph), imports.get("", 1))
    for function in model.functions:
        light_function = copy.functions.add(
            name=function.name, domain=function.domain, overload=function.overload
        )
        fields = ("input", "output", "attribute", "attribute_proto", "opset_import", "value_info")
        for field in fields:
            getattr(light_function, field).extend(getattr(function, field))
        light_function.opset_import.add(domain=FOREIGN_DOMAIN, version=1)
        imports = opsets_of(function.opset_import)
        if RUNTIME_DOMAIN not in imports:
            light_function.opset_import.add(domain=RUNTIME_DOMAIN, version=1)
        _copy_nodes(light_function, function_scope(function), imports.get("", 1))
    return copy


def _copy_graph(copy: onnx.GraphProto, scope: NameScope, opset: int) -> None:
    source = scope.graph
    assert source is not None
    copy.name = source.name or "graph"  # runtimes need no name
    for field in ("input", "output", "value_info"):
        getattr(copy, field).extend(getattr(source, field))
    sparse = [tensor.values for tensor in source.sparse_initializer]
    copy.initializer.extend(map(_light_tensor, [*source.initializer, *sparse]))
    _copy_nodes(copy, scope, opset)


def _copy_nodes(copy: onnx.GraphProto | onnx.FunctionProto, scope: NameScope, opset: int) -> None:
    for index, node in enumerate(scope.nodes):
        copied_node = copy.node.add(name=node.name, op_type=node.op_type, overload=node.overload)
        copied_node.domain = domain_name(node.domain)
        if not copied_node.domain and not _is_op(node.op_type, "", opset):
            copied_node.domain = FOREIGN_DOMAIN  # the checker takes any operator there
        copied_node.input.extend(node.input)
        copied_node.output.extend(node.output)
        inner = iter([inner_scope for _, inner_scope in scope.inner.get(index, ())])
        for attribute in node.attribute:
            _copy_attribute(copied_node.attribute.add(), attribute, inner, opset)


def _copy_attribute(
    copy: onnx.AttributeProto,
    attribute: onnx.AttributeProto,
    inner: Iterator[NameScope],
    opset: int,
) -> None:
    """Copy an attribute; `inner` yields the scopes of the graphs in it."""
    if not attribute.HasField("g") and not attribute.graphs and not attribute.HasField("t"):
        copy.CopyFrom(attribute)
        return
    copy.name, copy.type = attribute.name, attribute.type
    if attribute.ref_attr_name:
        copy.ref_attr_name = attribute.ref_attr_name
    if attribute.HasField("t"):
        copy.t.CopyFrom(_light_tensor(attribute.t))
    if attribute.HasField("g"):
        _copy_graph(copy.g, next(inner), opset)
    for _ in attribute.graphs:
        _copy_graph(copy.graphs.add(), next(inner), opset)


def _light_tensor(tensor: TensorProto) -> TensorProto:
    """Return a tensor, or an empty one of its type and name if it is large or elsewhere."""
    if tensor.ByteSize() <= MAX_KEPT_BYTES and not is_external(tensor):
        return tensor
    return TensorProto(name=tensor.name, data_type=tensor.data_type, dims=[0])
