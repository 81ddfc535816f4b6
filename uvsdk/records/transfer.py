"""How objects get into another process (pickle) and how they are copied.

A frozen record is made again from its fields, so that it is checked and read-only there as here. What holds a key, or
something that is open, goes nowhere: it is opened in the process that needs it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, NoReturn, SupportsIndex, TypeVar

from uvsdk.errors import NotTransferableError

Record = TypeVar("Record")


def reduce_to_fields(record: Any) -> tuple[Callable[..., Any], tuple[type, dict[str, object]]]:
    """``__reduce__`` of a dataclass that checks or freezes what it is given."""
    fields = [field for field in dataclasses.fields(record) if field.init]
    return _make, (type(record), {field.name: _plain(getattr(record, field.name)) for field in fields})


def stays_here(instead: str) -> Callable[[object, SupportsIndex], NoReturn]:
    """``__reduce_ex__`` of what is neither pickled nor copied; ``instead`` says what to do in the other process."""

    def refuse(self: object, protocol: SupportsIndex) -> NoReturn:
        raise NotTransferableError(f"a {type(self).__name__} is neither pickled nor copied: {instead}")

    return refuse


def _make(kind: type[Record], fields: dict[str, object]) -> Record:
    return kind(**fields)


def _plain(value: object) -> object:
    return dict(value) if isinstance(value, MappingProxyType) else value
