"""What a record holds, whatever its fields are called and however its records nest."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping

import numpy as np

from uvsdk.arrays import Array

DIGEST = "sha256:"
"""What follows depends on the last bit of every number."""

_SHORT = 40


def digest(data: bytes) -> str:
    """Sixteen hexadecimal digits are plenty: nobody chooses these values."""
    return DIGEST + hashlib.sha256(data).hexdigest()[:16]


def of_array(array: Array) -> str:
    """``"float32 (10, 64) sha256:..."``; bytes are bytes, whatever their shape."""
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    shape = (little.size,) if little.dtype == np.uint8 else little.shape
    return f"{little.dtype.name} {shape} {digest(little.tobytes())}"


def of_record(record: object) -> list[str]:
    """A description of every value in ``record``, sorted.

    A record within a record counts as its values, so that moving fields between records changes nothing. What is absent
    is left out: ``None``, empty arrays, texts and tuples, zero and false, and plain values that are their field's
    default, for a record that is not there has no such field.
    """
    return sorted(_values(record))


def _values(value: object, default: object = dataclasses.MISSING) -> Iterator[str]:
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _values(getattr(value, field.name), field.default)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _values(item)
    elif isinstance(value, np.ndarray):
        if value.size:
            yield of_array(value)
    elif isinstance(value, bytes):
        if value:
            yield of_array(np.frombuffer(value, np.uint8))
    elif isinstance(value, tuple | list) and any(not isinstance(item, str | int | float) for item in value):
        for item in value:
            yield from _values(item)
    elif value and (isinstance(value, tuple | list) or value != default):
        words = json.dumps(value)
        yield words if len(words) < _SHORT else f"{len(value)} in {hashlib.sha256(words.encode()).hexdigest()[:16]}"
