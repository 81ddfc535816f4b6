"""Frozen dataclasses of arrays and plain values, to bytes and back, without pickle.

Layout: ``b"UVM1"`` · ``u32`` header length (little endian) · header (canonical JSON, UTF-8) · raw array
bytes in field order. The header names the dataclass and gives, per field, either the value itself or, for
an array, its dtype and shape. Array bytes are little endian and C-ordered. A reader knows which class it
expects; nothing in the bytes chooses what is built.
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

_MAGIC = b"UVM1"
# A class matrix of a million users names them all in its header; what a device sends is bounded by its transport.
_HEADER_LIMIT = 1 << 27
_DTYPES = {"<f4": np.float32, "<f8": np.float64, "<i8": np.int64, "<i4": np.int32, "|u1": np.uint8}


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


Message = TypeVar("Message", bound=_Dataclass)


def pack(message: _Dataclass) -> bytes:
    """Encode a frozen dataclass whose fields are arrays, ``dict[str, array]``, str, int, float, bool, None or
    tuples of str or int.

    Raises:
        WireError: a field holds something else, e.g. an object array, or a float that is not finite.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Row:
    ...     user: str
    ...     vector: np.ndarray
    >>> unpack(Row, pack(Row("u", np.array([1.0, 2.0], np.float32)))).vector
    array([1., 2.], dtype=float32)
    """
    fields: dict[str, Any] = {}
    buffers: list[bytes] = []
    for field in dataclasses.fields(message):
        value = getattr(message, field.name)
        if isinstance(value, np.ndarray):
            fields[field.name] = _describe(value, buffers)
        elif isinstance(value, Mapping):
            fields[field.name] = {"arrays": {key: _describe(value[key], buffers) for key in sorted(value)}}
        else:
            fields[field.name] = {"value": list(value) if isinstance(value, tuple) else value}
    try:
        header = json.dumps(
            {"kind": type(message).__name__, "fields": fields},
            separators=(",", ":"),
            ensure_ascii=False,
            allow_nan=False,
        ).encode()
    except (TypeError, ValueError) as error:  # an object JSON has no word for, NaN, a lone surrogate
        raise WireError(f"a {type(message).__name__} holds a value that is not sent: {error}") from error
    if len(header) > _HEADER_LIMIT:
        raise WireError(f"the header of a {type(message).__name__} takes {len(header)} bytes, at most {_HEADER_LIMIT}")
    return b"".join([_MAGIC, struct.pack("<I", len(header)), header, *buffers])


def unpack(kind: type[Message], data: bytes | memoryview) -> Message:
    """Decode bytes made by :func:`pack` into ``kind``.

    Raises:
        WireError: not such a message: wrong magic, wrong class, missing, unknown or repeated field, dtype that is
            not the declared one (and never an object array), wrong length, a number that is not finite, or a value
            that the class's own ``__post_init__`` refuses.

    Arrays are read-only copies, so that neither the message's buffer nor its alignment outlives this call.
    """
    view = memoryview(data)
    if len(view) < 8 or view[:4] != _MAGIC:
        raise WireError(f"not a {kind.__name__}: expected the magic {_MAGIC!r}, got {bytes(view[:4])!r}")
    (length,) = struct.unpack("<I", view[4:8])
    if length > _HEADER_LIMIT or len(view) < 8 + length:
        raise WireError(f"a {kind.__name__} of {len(view)} bytes cannot hold a header of {length}")
    try:
        header = json.loads(bytes(view[8 : 8 + length]), object_pairs_hook=_distinct, parse_constant=_refuse_constant)
        name, fields = header["kind"], header["fields"]
        if name != kind.__name__ or not isinstance(fields, dict):
            raise WireError(f"expected a {kind.__name__}, got a {name}")
        reader = _Reader(view, 8 + length)
        hints = _hints(kind)
        values = {key: _restore(fields[key], reader, hints[key]) for key in fields}
        reader.finish()
        expected = {field.name for field in dataclasses.fields(kind)}
        if set(values) != expected:
            raise WireError(f"a {kind.__name__} has the fields {sorted(expected)}, got {sorted(values)}")
        return kind(**values)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise WireError(f"not a {kind.__name__}: {error}") from error


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose keys are all different: of two equal ones a reader would have to drop one."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise WireError("a JSON object names one key twice")
    return found


def _refuse_constant(name: str) -> Any:
    raise WireError(f"{name} is not a JSON number")


def _describe(array: Array, buffers: list[bytes]) -> dict[str, Any]:
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


def _restore(entry: dict[str, Any], reader: _Reader, hint: Any) -> Any:
    options = _options(hint)
    origins = [typing.get_origin(option) for option in options]
    if set(entry) == {"dtype", "shape"} and (np.ndarray in origins or np.ndarray in options):
        _check_dtype(entry["dtype"], options)
        return reader.take(entry["dtype"], entry["shape"])
    if set(entry) == {"arrays"} and (dict in origins or Mapping in origins):
        return {key: reader.take(item["dtype"], item["shape"]) for key, item in entry["arrays"].items()}
    if set(entry) != {"value"}:
        raise WireError(f"expected {hint}, got an entry of {sorted(entry)}")
    value = entry["value"]
    if not any(_is(value, option) for option in options):
        raise WireError(f"expected {hint}, got {type(value).__name__}")
    if type(value) is int and int not in options:
        return float(value)
    return tuple(value) if isinstance(value, list) else value


def _check_dtype(dtype: str, options: tuple[Any, ...]) -> None:
    """Refuse a dtype other than the declared one; a bare ``np.ndarray`` or ``NDArray[np.generic]`` takes any."""
    for option in options:
        declared = typing.get_args(option)
        scalar = typing.get_args(declared[1])[0] if len(declared) == 2 else np.generic
        if scalar in _DTYPES.values() and _DTYPES.get(dtype) is not scalar:
            raise WireError(f"expected an array of {scalar.__name__}, got dtype {dtype!r}")


def _options(hint: Any) -> tuple[Any, ...]:
    """``int | None`` -> ``(int, NoneType)``; anything that is not a union -> itself."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return typing.get_args(hint)
    return (hint,)


def _is(value: Any, option: Any) -> bool:
    """Whether a JSON value is exactly of one declared type (``True`` is no int, ``1`` is a float, 1e999 is none)."""
    if typing.get_origin(option) is tuple:
        return isinstance(value, list) and all(type(item) is typing.get_args(option)[0] for item in value)
    if option is float:
        return type(value) is int or (type(value) is float and math.isfinite(value))
    if option is type(None):
        return value is None
    return type(value) is option


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    """The types of a message's fields; looking them up takes longer than reading a short message."""
    return typing.get_type_hints(kind)
