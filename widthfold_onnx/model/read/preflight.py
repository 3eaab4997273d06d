"""Limits a model file by counting on its raw bytes, before a parser builds any object of it.

A protobuf parser turns two bytes into a message of some 150 bytes, so file size does not
bound memory. The scan visits every field header of the messages that can repeat or nest, and jumps
over the content of all others.
"""

from __future__ import annotations

from enum import IntEnum, auto

from widthfold_onnx.errors import InvalidModelError
from widthfold_onnx.text import quoted

MAX_NODES = 1_000_000
MAX_INITIALIZERS = 1_000_000
MAX_DEPTH = 32
MAX_MESSAGES = 2_000_000
MAX_FIELDS = 8_000_000

_LENGTH_DELIMITED = 2
_TEXT = frozenset(b"\t\n\r" + bytes(range(0x20, 0x7F)))
_LFS = b"version https://git-lfs"

# Only the type of a long value is visited: it may have many dims.
_LONG_VALUE = 4096


class _Kind(IntEnum):
    """Messages that the scan tells apart; an ENTRY is counted and not entered."""

    MODEL = 0
    GRAPH = auto()
    NODE = auto()
    ATTRIBUTE = auto()
    INITIALIZER = auto()
    TENSOR = auto()
    SPARSE = auto()
    VALUE = auto()
    TYPE = auto()
    SHAPED = auto()
    SHAPE = auto()
    WRAPPED = auto()
    MAP = auto()
    FUNCTION = auto()
    TRAINING = auto()
    ANNOTATION = auto()
    ENTRY = auto()


_K = _Kind
_FIELDS: dict[_Kind, dict[int, _Kind]] = {
    _K.MODEL: {7: _K.GRAPH, 8: _K.ENTRY, 14: _K.ENTRY, 20: _K.TRAINING, 25: _K.FUNCTION},
    _K.GRAPH: {
        1: _K.NODE,
        5: _K.INITIALIZER,
        11: _K.VALUE,
        12: _K.VALUE,
        13: _K.VALUE,
        14: _K.ANNOTATION,
        15: _K.SPARSE,
        16: _K.ENTRY,
    },
    _K.NODE: {5: _K.ATTRIBUTE, 9: _K.ENTRY, 10: _K.ENTRY},
    _K.ATTRIBUTE: {
        5: _K.TENSOR,
        6: _K.GRAPH,
        10: _K.TENSOR,
        11: _K.GRAPH,
        14: _K.TYPE,
        15: _K.TYPE,
        22: _K.SPARSE,
        23: _K.SPARSE,
    },
    _K.INITIALIZER: {13: _K.ENTRY, 16: _K.ENTRY},
    _K.TENSOR: {13: _K.ENTRY, 16: _K.ENTRY},
    _K.SPARSE: {1: _K.TENSOR, 2: _K.TENSOR},
    _K.VALUE: {2: _K.TYPE, 4: _K.ENTRY},
    _K.TYPE: {1: _K.SHAPED, 4: _K.WRAPPED, 5: _K.MAP, 8: _K.SHAPED, 9: _K.WRAPPED},
    _K.SHAPED: {2: _K.SHAPE},
    _K.SHAPE: {1: _K.ENTRY},
    _K.WRAPPED: {1: _K.TYPE},
    _K.MAP: {2: _K.TYPE},
    _K.FUNCTION: {7: _K.NODE, 9: _K.ENTRY, 11: _K.ATTRIBUTE, 12: _K.VALUE, 14: _K.ENTRY},
    _K.TRAINING: {1: _K.GRAPH, 2: _K.GRAPH, 3: _K.ENTRY, 4: _K.ENTRY},
    _K.ANNOTATION: {2: _K.ENTRY},
    _K.ENTRY: {},
}

# The loop below runs once per field: plain ints and tuples, and keys that are whole tags.
_CHILDREN = tuple(
    {number << 3 | _LENGTH_DELIMITED: int(child) for number, child in _FIELDS[kind].items()}
    for kind in _Kind
)
_LIMITS = tuple(
    {_K.NODE: MAX_NODES, _K.INITIALIZER: MAX_INITIALIZERS}.get(kind, MAX_MESSAGES) for kind in _Kind
)
_GRAPH, _VALUE = int(_K.GRAPH), int(_K.VALUE)


def scan_wire(data: bytes) -> None:
    """Check the encoding and the counts of a serialized ModelProto.

    Args:
        data: the whole file.

    Raises:
        InvalidModelError: the file is empty, a Git LFS pointer, text, cut off or not a protobuf;
            or it declares more than `MAX_NODES` nodes, `MAX_INITIALIZERS` initializers,
            `MAX_DEPTH` nested subgraphs, `MAX_MESSAGES` messages or `MAX_FIELDS` fields.
    """
    if not data:
        raise InvalidModelError("the file is empty")
    if data.startswith(_LFS):
        raise InvalidModelError("a Git LFS pointer, not the model; fetch it with: git lfs pull")
    try:
        _scan(data)
    except _WireError as error:
        head = data[:256]
        if _TEXT.issuperset(head):
            shown = quoted(head, 40)
            raise InvalidModelError(f"text, not an ONNX model; it starts with {shown}") from error
        raise InvalidModelError(f"not an ONNX protobuf, or cut off: {error}") from error


class _WireError(Exception):
    """The bytes are no protobuf message; the text says where."""


def _varint(data: bytes, pos: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
        shift += 7
        if shift > 63:
            raise _WireError(f"a number longer than 10 bytes at byte {pos}")


def _too_many(kind: int, count: int) -> InvalidModelError:
    if count > _LIMITS[kind]:
        return InvalidModelError(f"more than {_LIMITS[kind]} {_Kind(kind).name.lower()}s")
    return InvalidModelError(f"more than {MAX_MESSAGES} nodes, attributes, tensors and values")


def _scan(data: bytes) -> None:
    try:
        _scan_fields(data)
    except IndexError as error:
        raise _WireError(f"the last field runs past the end, {len(data)} bytes") from error


def _scan_fields(data: bytes) -> None:
    counts = [0] * len(_Kind)
    stack: list[tuple[int, int]] = []  # (end, kind) of the messages around this one
    kind, children = int(_K.MODEL), _CHILDREN[_K.MODEL]
    pos, end = 0, len(data)
    depth = fields = messages = 0
    while True:
        if pos >= end:
            if pos > end:
                raise _WireError(f"a field runs past its message, which ends at byte {end}")
            if not stack:
                return
            depth -= kind == _GRAPH
            end, kind = stack.pop()
            children = _CHILDREN[kind]
            continue
        tag = data[pos]
        pos += 1
        if tag > 0x7F:
            tag, pos = _varint(data, pos - 1)
        fields += 1
        if fields > MAX_FIELDS:
            raise InvalidModelError(f"more than {MAX_FIELDS} fields; no model needs as many")
        if tag < 8:
            raise _WireError(f"field number 0 before byte {pos}")
        if tag & 7 != _LENGTH_DELIMITED:
            pos = _past_number(data, pos, tag & 7)
            continue
        size = data[pos]
        pos += 1
        if size > 0x7F:
            size, pos = _varint(data, pos - 1)
        stop = pos + size
        if stop > end:
            raise _WireError(f"{size} bytes declared at byte {pos}, {end - pos} are there")
        child = children.get(tag)
        if child is None:
            pos = stop
            continue
        counts[child] += 1
        messages += 1
        if counts[child] > _LIMITS[child] or messages > MAX_MESSAGES:
            raise _too_many(child, counts[child])
        if not size or not _CHILDREN[child] or (child == _VALUE and size < _LONG_VALUE):
            pos = stop
            continue
        stack.append((end, kind))
        kind, children, end = child, _CHILDREN[child], stop
        if child == _GRAPH:
            depth += 1
            if depth > MAX_DEPTH + 1:  # the main graph is one of them
                raise InvalidModelError(f"subgraphs are nested more than {MAX_DEPTH} deep")


def _past_number(data: bytes, pos: int, wire: int) -> int:
    """Return the end of a field without a length."""
    if wire == 0:
        while data[pos] > 0x7F:
            pos += 1
        return pos + 1
    if wire == 1:
        return pos + 8
    if wire == 5:
        return pos + 4
    raise _WireError(f"unknown wire type {wire} before byte {pos}")
