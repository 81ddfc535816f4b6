"""What must not stop half way because whoever asked for it has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Answer = TypeVar("Answer")


async def to_its_end(work: Coroutine[Any, Any, Answer]) -> Answer:
    """The outcome of ``work``, which a cancellation of the caller does not cancel: that is passed on after its end.

    For steps whose parts belong together, a commit and what follows from it in memory and on the disk.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # nobody is left to be told
        raise
