"""What a process pool of the tests runs; importing it costs a child nothing."""

from __future__ import annotations


def raise_it(error: BaseException) -> None:
    """Raise it, with a cause, as code in a worker does."""
    raise error from ValueError("the cause")
