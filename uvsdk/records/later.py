"""Fields that records have got since they were first written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, field
from typing import Any, Final

_MARK: Final = "uvsdk.later"


def later(default_factory: Callable[[], Any]) -> Any:
    """A field, with what it holds by default, that older bytes lack and are still read without.

    It is written only where it holds something (not 0, not empty), so that what older versions could say keeps its
    bytes and digests; an older version refuses a record that says more.
    """
    return field(default_factory=default_factory, metadata={_MARK: True})


def is_later(declared: Field[Any]) -> bool:
    """Whether a field of a record may be absent from its bytes."""
    return _MARK in declared.metadata
