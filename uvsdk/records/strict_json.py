"""JSON of strangers, read as RFC 8259 and I-JSON (RFC 7493) have it and no wider.

Python's reader takes more: ``NaN``, a key twice, half of a surrogate pair. Whatever comes after it then fails where
nobody expects it, when the value is encoded, hashed or answered.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from uvsdk.errors import WireError

DEPTH = 32
"""Deepest nesting that is read; our own messages have three levels."""


def loads(body: bytes) -> object:
    """Read one JSON text in UTF-8.

    Raises:
        WireError: anything that is not one: other encodings, ``NaN``, a key twice, a lone surrogate, a number or a
            nesting beyond every limit. The message never repeats the body.

    >>> loads(b'{"a": [1.5, "x"]}')
    {'a': [1.5, 'x']}
    >>> loads(b'{"a": NaN}')
    Traceback (most recent call last):
      ...
    uvsdk.errors.WireError: not JSON: NaN is no number of it
    """
    try:
        text = body.decode()
        value = json.loads(text, object_pairs_hook=distinct, parse_constant=refuse_constant)
    except WireError:
        raise
    except UnicodeDecodeError:
        raise WireError("the body is not JSON in UTF-8") from None  # the error quotes the body
    except json.JSONDecodeError as error:
        raise WireError(f"the body is not JSON: {error.msg} at character {error.pos}") from None
    except (ValueError, RecursionError):
        raise WireError("the body is not JSON: a number or a nesting beyond every limit") from None
    _check(value, DEPTH)
    return value


def _check(value: object, depth: int) -> None:
    if depth == 0:
        raise WireError(f"the body is nested more than {DEPTH} deep")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise WireError("a text in the body holds half of a surrogate pair") from None
    elif isinstance(value, dict):
        for name, item in value.items():
            _check(name, depth)
            _check(item, depth - 1)
    elif isinstance(value, list):
        for item in value:
            if not isinstance(item, float):
                _check(item, depth - 1)


def distinct(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    """A JSON object whose keys are all different: of two equal ones a reader would have to drop one."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise WireError("a JSON object has the same key twice")
    return found


def refuse_constant(word: str) -> object:
    """Raise :class:`WireError` for ``NaN`` and the infinities, which Python's reader takes for numbers."""
    raise WireError(f"not JSON: {word} is no number of it")
