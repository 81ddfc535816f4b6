"""Frozen dataclasses of arrays, plain values and further such records, to bytes and back, without pickle.

Layout: ``b"UVM1"`` · ``u32`` header length (little endian) · header (canonical JSON, UTF-8) · raw array
bytes in field order. The header names the dataclass and gives, per field, one of

- ``{"value": ...}``: the value itself;
- ``{"dtype": ..., "shape": [...]}``: an array; bytes are written as an array of uint8 in one dimension;
- ``{"arrays": {name: ...}}``: named arrays, sorted by name;
- ``{"kind": ..., "fields": {...}}``: a record, as the header itself is one; its arrays stand in its place;
- ``{"records": [...]}``: a tuple of such.

A field that was added to a record later may be absent, and is where it says nothing (:mod:`uvsdk.records.later`).

Array bytes are little endian and C-ordered. A reader knows which class it expects; nothing in the bytes chooses what
is built.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import struct
import types
import typing
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from uvsdk.arrays import Array
from uvsdk.errors import WireError
from uvsdk.records.later import is_later
from uvsdk.records.strict_json import distinct, refuse_constant

Scalar = str | int | float | bool | None
"""What a setting may be."""

_MAGIC = b"UVM1"
# A class matrix of a million users names them all in its header; what a device sends is bounded by its transport.
_HEADER_LIMIT = 1 << 27
_DTYPES = {"<f4": np.float32, "<f8": np.float64, "<i8": np.int64, "<i4": np.int32, "|u1": np.uint8}


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


Message = TypeVar("Message", bound=_Dataclass)


def pack(message: _Dataclass) -> bytes:
    """Encode a frozen dataclass whose fields are arrays, ``dict[str, array]``, bytes, str, int, float, bool, None,
    frozen dataclasses of the same kind, or tuples of str, of int or of such a dataclass.

    Raises:
        WireError: a field holds something else, e.g. an object array, or a float that is not finite; or it is declared
            as something that :func:`unpack` would not read, so that nothing is written that cannot be read back.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Row:
    ...     user: str
    ...     vector: np.ndarray
    >>> unpack(Row, pack(Row("u", np.array([1.0, 2.0], np.float32)))).vector
    array([1., 2.], dtype=float32)
    """
    buffers: list[bytes] = []
    try:
        header = json.dumps(
            _describe_record(message, type(message), buffers),
            separators=(",", ":"),
            ensure_ascii=False,
            allow_nan=False,
        ).encode()
    except (TypeError, ValueError, RecursionError) as error:  # no word for it in JSON, NaN, a lone surrogate, too deep
        raise WireError(f"a {type(message).__name__} holds a value that is not sent: {error}") from error
    if len(header) > _HEADER_LIMIT:
        raise WireError(f"the header of a {type(message).__name__} takes {len(header)} bytes, at most {_HEADER_LIMIT}")
    return b"".join([_MAGIC, struct.pack("<I", len(header)), header, *buffers])


def unpack(kind: type[Message], data: bytes | memoryview) -> Message:
    """Decode bytes made by :func:`pack` into ``kind``.

    Raises:
        WireError: not such a message: wrong magic, wrong class, missing, unknown or repeated field, dtype that is
            not the declared one (and never an object array), wrong length, a number that is not finite, a record where
            another or none is declared, or a value that the class's own ``__post_init__`` refuses.

    Arrays are read-only copies, so that neither the message's buffer nor its alignment outlives this call.
    """
    view = memoryview(data)
    if len(view) < 8 or view[:4] != _MAGIC:
        raise WireError(f"not a {kind.__name__}: expected the magic {_MAGIC!r}, got {bytes(view[:4])!r}")
    (length,) = struct.unpack("<I", view[4:8])
    if length > _HEADER_LIMIT or len(view) < 8 + length:
        raise WireError(f"a {kind.__name__} of {len(view)} bytes cannot hold a header of {length}")
    try:
        header = json.loads(bytes(view[8 : 8 + length]), object_pairs_hook=distinct, parse_constant=refuse_constant)
        reader = _Reader(view, 8 + length)
        message = _restore_record(header, reader, kind)
        reader.finish()
        return message
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise WireError(f"not a {kind.__name__}: {error}") from error


def _describe_record(record: _Dataclass, kind: type | None, buffers: list[bytes]) -> dict[str, Any]:
    if type(record) is not kind:
        raise WireError(f"a {type(record).__name__} stands in a field that is declared as something else")
    values = {name: getattr(record, name) for name in _declared(type(record))}
    fields = {
        name: _describe(values[name], declared, buffers)
        for name, declared in _declared(type(record)).items()
        if not (declared.later and _is_empty(values[name]))
    }
    return {"kind": type(record).__name__, "fields": fields}


def _is_empty(value: Any) -> bool:
    return value.size == 0 if isinstance(value, np.ndarray) else not value


def _describe(value: Any, declared: _Declared, buffers: list[bytes]) -> dict[str, Any]:
    if isinstance(value, bytes):
        value = np.frombuffer(value, np.uint8)
    if isinstance(value, np.ndarray):
        return _describe_array(value, buffers)
    if isinstance(value, Mapping):
        return {"arrays": {key: _describe_array(value[key], buffers) for key in sorted(value)}}
    if _is_record(type(value)):
        return _describe_record(value, declared.record, buffers)
    if isinstance(value, tuple) and declared.records is not None:
        return {"records": [_describe_record(item, declared.records, buffers) for item in value]}
    return {"value": list(value) if isinstance(value, tuple) else value}


def _describe_array(array: Array, buffers: list[bytes]) -> dict[str, Any]:
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    if little.dtype.str not in _DTYPES:
        raise WireError(f"dtype {array.dtype} is not sent; use one of {sorted(_DTYPES)}")
    buffers.append(little.tobytes())
    return {"dtype": little.dtype.str, "shape": list(array.shape)}


class _Reader:
    """Takes array bytes off a buffer in order and insists that none are left."""

    def __init__(self, view: memoryview, offset: int) -> None:
        self._view = view
        self._offset = offset

    def take(self, dtype: str, shape: list[int]) -> Array:
        if dtype not in _DTYPES:
            raise WireError(f"dtype {dtype!r} is not accepted; expected one of {sorted(_DTYPES)}")
        if len(shape) > 8 or not all(type(side) is int and 0 <= side < 1 << 40 for side in shape):
            raise WireError(f"shape {shape!r} is not a shape")
        count = math.prod(shape)
        end = self._offset + count * np.dtype(dtype).itemsize
        if end > len(self._view):
            raise WireError(f"array of shape {shape} needs {end} bytes, the message has {len(self._view)}")
        array = np.frombuffer(self._view[self._offset : end], dtype=_DTYPES[dtype]).reshape(shape).copy()
        array.flags.writeable = False
        self._offset = end
        return array

    def finish(self) -> None:
        if self._offset != len(self._view):
            raise WireError(f"{len(self._view) - self._offset} bytes too many after the last array")


@dataclasses.dataclass(frozen=True, slots=True)
class _Declared:
    """What one field of a message may hold: its annotation, read once a class.

    Args:
        text: the annotation, for messages.
        dtypes: of an array, as the wire names them; empty where none is declared.
        named: of the arrays of a ``dict[str, array]``, likewise.
        plain: classes of single values.
        listed: classes of the items of a tuple.
        record: of the one record, ``None`` where none is declared.
        records: of a tuple of records, likewise.
        later: whether bytes may lack it (:func:`uvsdk.records.later.later`).
    """

    text: str
    dtypes: frozenset[str]
    named: frozenset[str]
    plain: frozenset[type]
    listed: frozenset[type]
    record: type | None
    records: type | None
    later: bool = False


def _restore_record(entry: dict[str, Any], reader: _Reader, kind: type[Message]) -> Message:
    if set(entry) != {"kind", "fields"}:
        raise WireError(f"expected a {kind.__name__}, got an entry of {sorted(entry)}")
    name, fields = entry["kind"], entry["fields"]
    if name != kind.__name__ or not isinstance(fields, dict):
        raise WireError(f"expected a {kind.__name__}, got a {name}")
    declared = _declared(kind)
    values = {key: _restore(fields[key], reader, declared[key]) for key in fields}
    if {name for name in declared if not (declared[name].later or name in values)} or not set(values) <= set(declared):
        raise WireError(f"a {kind.__name__} has the fields {sorted(declared)}, got {sorted(values)}")
    return kind(**values)


def _restore(entry: dict[str, Any], reader: _Reader, declared: _Declared) -> Any:
    if set(entry) == {"dtype", "shape"} and declared.dtypes:
        return _take(entry, reader, declared.dtypes)
    if set(entry) == {"dtype", "shape"} and bytes in declared.plain and len(entry["shape"]) == 1:
        return _take(entry, reader, frozenset({"|u1"})).tobytes()
    if set(entry) == {"kind", "fields"} and declared.record is not None:
        return _restore_record(entry, reader, declared.record)
    if set(entry) == {"records"} and declared.records is not None and isinstance(entry["records"], list):
        return tuple(_restore_record(item, reader, declared.records) for item in entry["records"])
    if set(entry) == {"arrays"} and declared.named and isinstance(entry["arrays"], dict):
        return {key: _take(item, reader, declared.named) for key, item in entry["arrays"].items()}
    if set(entry) != {"value"}:
        raise WireError(f"expected {declared.text}, got an entry of {sorted(entry)}")
    value = entry["value"]
    if not all(map(_is_kept, value if isinstance(value, list) else [value])):
        raise WireError(f"expected {declared.text}, got a text that nothing can keep")
    if isinstance(value, list) and any(all(type(item) is kind for item in value) for kind in declared.listed):
        return tuple(value)
    if type(value) in declared.plain and math.isfinite(value if type(value) is float else 0.0):  # 1e999 is no number
        return value
    if type(value) is int and float in declared.plain:
        return float(value)
    raise WireError(f"expected {declared.text}, got {type(value).__name__}")


def _is_kept(value: Any) -> bool:
    """Whether a text fits what takes it later: valid Unicode without NUL. The bounds of numbers are their fields'."""
    return type(value) is not str or not ("\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value))


def _take(entry: dict[str, Any], reader: _Reader, dtypes: frozenset[str]) -> Array:
    if entry["dtype"] in _DTYPES and entry["dtype"] not in dtypes:
        expected = " or ".join(sorted(_DTYPES[name].__name__ for name in dtypes))
        raise WireError(f"expected an array of {expected}, got dtype {entry['dtype']!r}")
    return reader.take(entry["dtype"], entry["shape"])


@functools.cache
def _declared(kind: type) -> dict[str, _Declared]:
    """The types of a message's fields; looking them up takes longer than reading a short message.

    Raises:
        WireError: a field is declared as something that this module does not read.
    """
    hints = typing.get_type_hints(kind)
    return {
        field.name: dataclasses.replace(_field(kind.__name__, field.name, hints[field.name]), later=is_later(field))
        for field in dataclasses.fields(kind)
    }


def _field(kind: str, name: str, hint: Any) -> _Declared:
    dtypes: set[str] = set()
    named: set[str] = set()
    plain: set[type] = set()
    listed: set[type] = set()
    for option in _options(hint):
        origin, arguments = typing.get_origin(option) or option, typing.get_args(option)
        values = _options(arguments[1]) if origin in (dict, Mapping) and len(arguments) == 2 else ()
        item: Any = arguments[0] if origin is tuple and len(arguments) == 2 and arguments[1] is ... else None
        if _is_array(option):
            dtypes |= _dtypes(option)
        elif values and arguments[0] is str and all(map(_is_array, values)):
            named = named.union(*map(_dtypes, values))
        elif item in (str, int) or _is_record(item):
            listed.add(item)
        elif option in (str, int, float, bool, bytes, type(None)) or _is_record(option):
            plain.add(option)
        else:
            raise WireError(f"{kind}.{name} is declared as {option}, which is neither written nor read")
    record, records = set(filter(_is_record, plain)), set(filter(_is_record, listed))
    if len(record) > 1 or len(records) > 1 or (bytes in plain and dtypes):
        raise WireError(f"{kind}.{name} is declared as {hint}: the bytes would choose which of them is read")
    return _Declared(
        str(hint),
        frozenset(dtypes),
        frozenset(named),
        frozenset(plain - record),
        frozenset(listed - records),
        record=next(iter(record), None),
        records=next(iter(records), None),
    )


def _options(hint: Any) -> tuple[Any, ...]:
    """``int | None`` -> ``(int, NoneType)``; a named alias -> what it stands for; anything else -> itself.

    ``NDArray`` is ``np.ndarray`` with arguments up to numpy 2.4 and a named alias (PEP 695) from 2.5 on.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Union or origin is types.UnionType:
        return tuple(option for argument in arguments for option in _options(argument))
    alias = hint if origin is None else origin
    if hasattr(alias, "__value__"):
        return _options(alias.__value__[arguments] if arguments else alias.__value__)
    return (hint,)


def _is_array(option: Any) -> bool:
    return (typing.get_origin(option) or option) is np.ndarray


def _is_record(option: Any) -> bool:
    return isinstance(option, type) and dataclasses.is_dataclass(option)


def _dtypes(array: Any) -> set[str]:
    """What an array's annotation admits; a bare ``np.ndarray`` or ``NDArray[np.generic]`` takes any that is sent."""
    arguments = typing.get_args(array)
    scalars = typing.get_args(arguments[1]) if len(arguments) == 2 else ()
    kind = scalars[0] if scalars and isinstance(scalars[0], type) else np.generic
    return {name for name, scalar in _DTYPES.items() if issubclass(scalar, kind)}
