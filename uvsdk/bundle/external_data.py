"""Where an ONNX graph keeps its tensors, read from its bytes without the ``onnx`` package.

A tensor of a graph may lie in another file, and which file that is the graph itself says: ``/etc/shadow`` as well as
``../secret``. onnxruntime reads it when a session is built. A bundle has one such file, ``theta.f32``, which is handed
over in memory; every other place is refused when the bundle is opened, wherever in the graph it stands: initialisers,
sparse ones, attributes of nodes, subgraphs, functions, training information.

The bytes are walked as protobuf (https://protobuf.dev/programming-guides/encoding) along the few fields of onnx.proto3
under which a tensor can stand; everything else is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from uvsdk.errors import BundleError

_Kind: TypeAlias = Literal[
    "model", "graph", "node", "attribute", "tensor", "sparse", "function", "training", "entry", "top"
]

# message -> field number -> the message that lies there (onnx.proto3)
_CHILDREN: Final[Mapping[_Kind, Mapping[int, _Kind]]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "function": {7: "node", 11: "attribute"},
}
_TENSOR_NAME, _TENSOR_EXTERNAL, _TENSOR_LOCATION = 8, 13, 14
_DEEPEST: Final = 64
_LOCATION, _OFFSET, _LENGTH = "location", "offset", "length"


@dataclass(frozen=True, slots=True)
class External:
    """A tensor that lies outside the graph.

    Args:
        name: of the tensor.
        initialiser: whether it is one of the main graph's initialisers.
        entries: what the graph says of its place: ``location``, ``offset``, ``length``.
    """

    name: str
    initialiser: bool
    entries: tuple[tuple[str, str], ...]


def check_external(name: str, graph: bytes, *, file: str = "", size: int = 0, built: bool = True) -> None:
    """Raise :class:`BundleError` where a graph keeps a tensor anywhere but in itself, or in ``file`` of ``size`` bytes.

    Args:
        name: of the graph, for the message.
        graph: its bytes.
        file: the one other file that it may name, in initialisers of its main graph; empty for none.
        size: that file's.
        built: whether the graph is about to be built, and bytes that are not ONNX are refused too; nobody can say where
            their tensors lie.
    """
    try:
        tensors = external_tensors(graph)
    except BundleError as error:
        if built:
            raise BundleError(f"onnxruntime cannot load the graph {name!r}: {error}") from error
        return
    for tensor in tensors:
        entries = dict(tensor.entries)
        if not file or entries.get(_LOCATION) != file or not tensor.initialiser or len(entries) != len(tensor.entries):
            raise BundleError(
                f"the graph {name!r} keeps a tensor in another file, which a bundle from elsewhere could make any file "
                "of this machine; nothing was read"
            )
        if set(entries) != {_LOCATION, _OFFSET, _LENGTH} or not _within(entries, size):
            raise BundleError(f"the graph {name!r} names a place outside the {size} bytes of {file}")


def external_tensors(graph: bytes) -> list[External]:
    """Every tensor of an ONNX graph that lies outside it. Raises :class:`BundleError`."""
    found: list[External] = []
    if graph[4:8] == b"ORTM":
        raise BundleError("it is in onnxruntime's own format; a bundle holds ONNX")
    try:
        _walk(memoryview(graph), "model", found, ())
    except (IndexError, UnicodeDecodeError) as error:
        raise BundleError("it is not ONNX: it ends too early, or its lengths do not fit") from error
    return found


def _within(entries: Mapping[str, str], size: int) -> bool:
    offset, length = entries[_OFFSET], entries[_LENGTH]
    if not all(text.isascii() and text.isdecimal() and len(text) <= 12 for text in (offset, length)):
        return False
    return int(length) > 0 and int(offset) + int(length) <= size


def _walk(data: memoryview, kind: _Kind, found: list[External], path: tuple[_Kind, ...]) -> None:
    if len(path) > _DEEPEST:
        raise BundleError(f"it is nested more than {_DEEPEST} deep")
    if kind == "tensor":
        _look_at_tensor(data, found, initialiser=path == ("model", "graph"))
        return
    children = _CHILDREN[kind]
    for number, value in _fields(data):
        if number in children:
            if isinstance(value, int):
                raise IndexError(number)
            _walk(value, children[number], found, (*path, kind))


def _look_at_tensor(data: memoryview, found: list[External], *, initialiser: bool) -> None:
    name, entries, elsewhere = "", list[tuple[str, str]](), False
    for number, value in _fields(data):
        if number == _TENSOR_LOCATION:
            elsewhere = elsewhere or value != 0
        elif number == _TENSOR_EXTERNAL and not isinstance(value, int):
            strings = {key: bytes(text).decode() for key, text in _fields(value) if not isinstance(text, int)}
            entries.append((strings.get(1, ""), strings.get(2, "")))
        elif number == _TENSOR_NAME and not isinstance(value, int):
            name = bytes(value).decode()
    if elsewhere or entries:
        found.append(External(name, initialiser, tuple(entries)))


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """Number and value of each field: an integer, or the bytes of a string or message. Raises ``IndexError``."""
    place = 0
    while place < len(data):
        tag, place = _varint(data, place)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, place = _varint(data, place)
            yield number, value
            continue
        if wire == 2:
            length, place = _varint(data, place)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            raise IndexError(wire)  # groups: no such field in ONNX
        if place + length > len(data):
            raise IndexError(place)
        yield number, data[place : place + length]
        place += length


def _varint(data: memoryview, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place += 1
        if byte < 0x80:
            return value, place
    raise IndexError(place)
