"""A progress bar on the terminal; a plain line now and then where there is no terminal or ``rich`` is missing."""

from __future__ import annotations

import importlib
import math
import sys
from types import TracebackType
from typing import Any, Self

from uvsdk.simulation.records import RoundRecord

_LINES = 10


class Progress:
    """Shows the rounds on standard error; a context manager.

    Args:
        done: rounds committed before.
        total: rounds to be committed in all.
    """

    def __init__(self, done: int, total: int) -> None:
        self._done = done
        self._total = total
        self._bar: Any = _bar() if sys.stderr.isatty() else None
        self._task: Any = None

    def __call__(self, record: RoundRecord) -> None:
        """Show one round."""
        self._done += record.committed
        words = _words(record)
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, words=words)
            return
        often = max(1, self._total // _LINES)
        if not record.committed or self._done % often == 0 or self._done >= self._total:
            sys.stderr.write(f"round {record.round_id} ({self._done}/{self._total}): {words}\n")
            sys.stderr.flush()

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("rounds", total=self._total, completed=self._done, words="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def _words(record: RoundRecord) -> str:
    if not record.committed:
        return f"aborted, {record.failed} devices failed"
    parts = [f"loss {record.loss:.4f}", f"{record.participants} devices"]
    if record.failed:
        parts.append(f"{record.failed} failed")
    if math.isfinite(record.mean_cosine):
        parts.append(f"mean cosine {record.mean_cosine:.3f}")
    parts.append(f"{record.seconds:.2f} s")
    return ", ".join(parts)


def _bar() -> Any:
    """A bar of rich, or ``None`` where it is not installed."""
    try:
        rich: Any = importlib.import_module("rich.progress")
        console: Any = importlib.import_module("rich.console")
    except ImportError:
        return None
    return rich.Progress(
        rich.TextColumn("{task.completed}/{task.total} rounds"),
        rich.BarColumn(),
        rich.TextColumn("{task.fields[words]}"),
        rich.TimeRemainingColumn(),
        console=console.Console(stderr=True),
    )
