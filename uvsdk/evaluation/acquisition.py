"""Every sample of an evaluation through the model, once. What cannot be used is counted with its reason."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np

from uvsdk.arrays import Float32, Float64
from uvsdk.bundle.inference import Embedded
from uvsdk.errors import SampleError, SettingsError

Embedder: TypeAlias = Callable[[Path], Float32 | Embedded]
"""One sample to one unit vector, float32 (d,), or to :class:`uvsdk.bundle.inference.Embedded` where quality and speed
are to be reported as well; raises SampleError for a sample that cannot be used."""

Progress: TypeAlias = Callable[[int, int], None]
"""Called with (samples done, samples in all) after each sample."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A sample that could not be acquired: whose, the file's last folders and name, the error's class in words, and its
    message."""

    subject: str
    file: str
    kind: str
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Acquired:
    """What is kept of a usable sample.

    Args:
        embedding: float32 (d,), unit norm.
        measured: its quality, name with unit -> value; empty where the embedder gives none.
        timings_s: stage -> seconds; likewise.
    """

    embedding: Float32
    measured: Mapping[str, float] = field(default_factory=dict)
    timings_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Acquisition:
    """The samples that were asked for, in order; ``None`` where one could not be used."""

    found: tuple[Acquired | None, ...]
    failures: tuple[Failure, ...]

    @property
    def timings_s(self) -> dict[str, Float64]:
        """Stage -> seconds, one for each usable sample; a stage that one of them lacks is left out."""
        return _columns([sample.timings_s for sample in self.found if sample is not None])


def acquire(
    samples: Sequence[tuple[str, Path]], embed: Embedder, *, jobs: int = 1, progress: Progress | None = None
) -> Acquisition:
    """Embed each sample.

    Args:
        samples: (whose it is, the file).
        embed: the model; must be safe to call from ``jobs`` threads.
        jobs: threads; the result does not depend on it.
        progress: told of each sample.

    Raises:
        SettingsError: ``jobs`` is below 1.
    """
    if jobs < 1:
        raise SettingsError(f"samples are read by at least one job, got {jobs}")
    found: list[Acquired | None] = []
    failures: list[Failure] = []
    for (subject, path), outcome in zip(samples, _each(samples, embed, jobs), strict=True):
        if isinstance(outcome, Acquired):
            found.append(outcome)
        else:
            found.append(None)
            failures.append(Failure(subject, Path(*path.parts[-3:]).as_posix(), *outcome))
        if progress is not None:
            progress(len(found), len(samples))
    return Acquisition(tuple(found), tuple(failures))


def _each(samples: Sequence[tuple[str, Path]], embed: Embedder, jobs: int) -> Iterator[Acquired | tuple[str, str]]:
    if jobs == 1:
        yield from (_one(path, embed) for _, path in samples)
        return
    with ThreadPoolExecutor(jobs) as threads:
        yield from threads.map(lambda sample: _one(sample[1], embed), samples)


def _one(path: Path, embed: Embedder) -> Acquired | tuple[str, str]:
    """The sample, or the kind and the reason of its failure."""
    if not path.is_file():
        return "missing file", f"there is no file {path.name}"
    try:
        result = embed(path)
    except SampleError as error:
        return kind(error), str(error)
    except OSError as error:
        return "unreadable file", f"{path.name}: {error.strerror}"
    if isinstance(result, Embedded):
        found = Acquired(result.embedding, result.quality.measured, result.timings_s)
    else:
        found = Acquired(result)
    if not np.isfinite(found.embedding).all():
        return "no embedding", "the model gave values that are not finite numbers"
    return found


def kind(error: SampleError) -> str:
    """The class of an error in words.

    >>> from uvsdk.errors import NoSpeechError
    >>> kind(NoSpeechError("0.1 s of speech, need 1 s"))
    'no speech'
    """
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(error).__name__.removesuffix("Error")).lower()


def _columns(rows: Sequence[Mapping[str, float]]) -> dict[str, Float64]:
    if not rows:
        return {}
    names = [name for name in rows[0] if all(name in row for row in rows)]
    return {name: np.array([row[name] for row in rows], np.float64) for name in names}
