"""Every recording under every condition through a model, once; a condition that is there already is not made again."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from examples.reproduce import data
from examples.reproduce.conditions.codecs import RATE
from examples.reproduce.conditions.conditions import CONDITIONS, MIXED, Clip
from examples.reproduce.conditions.models import MEASURED, OFF, Bundled, Model
from uvsdk import modality
from uvsdk.arrays import Float32, Float64
from uvsdk.bundle import Bundle
from uvsdk.bundle.bundle import direction
from uvsdk.evaluation.observations import ORIGINAL, Observations
from uvsdk.modality import Sample
from uvsdk.modality.voice import MODALITY
from uvsdk.modality.voice.degradation import RECORDINGS, worsen
from uvsdk.modality.voice.frames import CapturedVoice
from uvsdk.scoring.conditions import Conditions, conditions_of

COPIES = tuple(RECORDINGS)
"""What ``uvsdk calibrate`` makes of every recording, for thresholds from the other half of the people."""

_BABBLE_OF = 12


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """All recordings under one condition.

    Args:
        embeddings: float32 (n, d), unit rows; NaN where the recording gave nothing.
        measured: float64 (n, k), the qualities of :data:`.models.MEASURED`; NaN likewise.
    """

    embeddings: Float32
    measured: Float64

    def qualities(self, index: int) -> dict[str, float]:
        """What was measured of one recording."""
        return dict(zip(MEASURED, self.measured[index].tolist(), strict=True))

    def conditions(self) -> list[Conditions]:
        """Of every recording, as far as a score depends on them."""
        return [conditions_of(self.qualities(index), MODALITY.conditions) for index in range(len(self.embeddings))]


def under(name: str, recordings: Sequence[Clip], model: Model, places: Sequence[int] = ()) -> Rows:
    """The recordings under one condition, or those at ``places`` among them, made beside the others.

    Raises:
        MissingToolError: it cannot be made here (:mod:`.codecs`).
    """
    chosen = places or range(len(recordings))

    def make() -> dict[str, list[Sample]]:
        changed = {**CONDITIONS, **MIXED}[name](recordings)
        return {name: [(changed[place], RATE) for place in chosen]}

    return _remembered(model, [recordings[place] for place in chosen], name, make)[name]


def copies(recordings: Sequence[Clip], model: Bundled) -> Mapping[str, Rows]:
    """The copies that ``uvsdk calibrate`` makes, by name."""
    return _remembered(model, recordings, "copies", lambda: _copies(recordings, model.bundle))


def observations(
    recordings: Sequence[Clip], clean: Rows, made: Mapping[str, Rows], people: Sequence[str]
) -> Observations:
    """The recordings and their copies as ``uvsdk calibrate`` sees them; people by their place in ``people``."""
    every = {ORIGINAL: clean, **made}
    rows, owner, recording, copy = list[Float32](), list[int](), list[int](), list[int]()
    where = list[Conditions]()
    for place, found in enumerate(every.values()):
        conditions = found.conditions()
        for index in np.flatnonzero(np.isfinite(found.embeddings[:, 0])).tolist():
            rows.append(found.embeddings[index])
            owner.append(people.index(recordings[index].speaker))
            recording.append(index)
            copy.append(place)
            where.append(conditions[index])
    return Observations(
        np.stack(rows),
        np.array(owner, np.int64),
        np.array(recording, np.int64),
        np.array(copy, np.int64),
        np.ones(len(rows), np.bool_),
        tuple(where),
        tuple(every),
        MODALITY.conditions,
    )


def _copies(recordings: Sequence[Clip], bundle: Bundle) -> dict[str, list[Sample | None]]:
    rng = np.random.default_rng(0)
    made: dict[str, list[Sample | None]] = {name: [] for name in COPIES}
    heard: list[tuple[str, CapturedVoice]] = []
    for clip in recordings:
        found = modality.get("voice").prepare((clip.pcm, RATE), bundle, capture=OFF)
        assert isinstance(found.captured, CapturedVoice)
        others = [voice for speaker, voice in heard if speaker != clip.speaker]
        samples = worsen(found.captured, found.quality.measured, rng, others)
        for name in COPIES:
            made[name].append(samples.get(name))
        heard = [*heard[1 - _BABBLE_OF :], (clip.speaker, found.captured)]
    return made


def _remembered(
    model: Model, recordings: Sequence[Clip], key: str, make: Callable[[], Mapping[str, Sequence[Sample | None]]]
) -> dict[str, Rows]:
    """The rows from the cache, else made and put there. They are personal data: never commit or publish the files."""
    of = hashlib.sha256("\n".join(clip.name for clip in recordings).encode()).hexdigest()[:8]
    path = data.cache() / "conditions" / model.key / of / f"{key.replace(' ', '-').replace('/', '-')}.npz"
    if not path.exists():
        arrays = {}
        for name, samples in make().items():
            windows, measured = model.windows(samples)
            arrays[f"{name}|windows"] = np.concatenate(windows)
            arrays[f"{name}|counts"] = np.array([len(rows) for rows in windows])
            arrays[f"{name}|measured"] = measured
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".draft.npz")
        np.savez(draft, **arrays)
        draft.replace(path)
    with np.load(path) as file:
        kept = {name: file[name] for name in file.files}
    found = {}
    for name in dict.fromkeys(item.partition("|")[0] for item in kept):
        ends = np.cumsum([0, *kept[f"{name}|counts"].tolist()]).tolist()
        windows = kept[f"{name}|windows"]
        embeddings = np.full((len(ends) - 1, windows.shape[1]), np.nan, np.float32)
        for place, (start, end) in enumerate(itertools.pairwise(ends)):
            if end > start:
                embeddings[place] = direction(model.rows(windows[start:end]))
        found[name] = Rows(embeddings, kept[f"{name}|measured"])
    return found
