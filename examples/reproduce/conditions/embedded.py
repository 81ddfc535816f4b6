"""Every recording under every condition through a bundle, once; a condition that is there already is not made again."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import soundfile

from examples.reproduce import data
from examples.reproduce.conditions.codecs import RATE
from examples.reproduce.conditions.conditions import CONDITIONS, Clip
from uvsdk.arrays import Float32, Float64
from uvsdk.bundle import Bundle
from uvsdk.bundle.inference import embed
from uvsdk.errors import SampleError
from uvsdk.evaluation.observations import ORIGINAL, Observations
from uvsdk.modality import Capture, Sample
from uvsdk.modality.voice import MODALITY
from uvsdk.modality.voice.degradation import RECORDINGS, worsen
from uvsdk.modality.voice.frames import CapturedVoice
from uvsdk.modality.voice.quality import REQUIREMENTS
from uvsdk.scoring.conditions import conditions_of

CLIP_S = 5.0
"""Seconds from the beginning of each recording, so that all conditions but the short ones are of one length."""

RECORDINGS_A_SPEAKER = 8
OTHERS = 100
"""At most so many recordings of those who have several, and so many people who have one: impostors only."""

COPIES = tuple(RECORDINGS)
"""What ``uvsdk calibrate`` makes of every recording, for thresholds from the other half of the people."""

_MEASURED = tuple(dict.fromkeys(item.name for item in (*REQUIREMENTS, *MODALITY.conditions)))
_OFF = Capture(quality="off")
_BABBLE_OF = 12


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """All recordings under one condition.

    Args:
        embeddings: float32 (n, d), unit rows; NaN where the recording gave nothing.
        measured: float64 (n, k), the qualities of :data:`_MEASURED`; NaN likewise.
    """

    embeddings: Float32
    measured: Float64

    def qualities(self, index: int) -> dict[str, float]:
        """What was measured of one recording."""
        return dict(zip(_MEASURED, self.measured[index].tolist(), strict=True))


def clips() -> list[Clip]:
    """The recordings, in the order of the manifest; one that is there twice, once."""
    root = data.folder() / "speech_librispeech"
    if not (root / "manifest.csv").exists():
        raise data.MissingDataError(f"{root} is absent (examples/reproduce/librispeech/README.md says what it is)")
    with (root / "manifest.csv").open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    several = {row["speaker"] for row in rows if not row["split"].startswith("cohort")}
    counts = Counter[str]()
    found: dict[bytes, Clip] = {}
    for row in rows:
        owner = row["speaker"] if row["speaker"] in several else "others"
        if counts[owner] == (OTHERS if owner == "others" else RECORDINGS_A_SPEAKER):
            continue
        pcm, rate = soundfile.read(root / row["path"], dtype="float32", stop=round(CLIP_S * RATE))
        assert rate == RATE
        if pcm.tobytes() not in found:
            found[pcm.tobytes()] = Clip(row["path"], row["speaker"], pcm)
            counts[owner] += 1
    return list(found.values())


def under(name: str, recordings: Sequence[Clip], bundle: Bundle) -> Rows:
    """The recordings under one condition. Raises :class:`.codecs.MissingToolError` where it cannot be made here."""
    return _remembered(bundle, name, lambda: {name: [(pcm, RATE) for pcm in CONDITIONS[name](recordings)]})[name]


def copies(recordings: Sequence[Clip], bundle: Bundle) -> Mapping[str, Rows]:
    """The copies that ``uvsdk calibrate`` makes, by name."""
    return _remembered(bundle, "copies", lambda: _copies(recordings, bundle))


def observations(
    recordings: Sequence[Clip], clean: Rows, made: Mapping[str, Rows], people: Sequence[str]
) -> Observations:
    """The recordings and their copies as ``uvsdk calibrate`` sees them; people by their place in ``people``."""
    every = {ORIGINAL: clean, **made}
    rows, owner, recording, copy, where = [], [], [], [], []
    for place, found in enumerate(every.values()):
        for index in np.flatnonzero(np.isfinite(found.embeddings[:, 0])).tolist():
            rows.append(found.embeddings[index])
            owner.append(people.index(recordings[index].speaker))
            recording.append(index)
            copy.append(place)
            where.append(conditions_of(found.qualities(index), MODALITY.conditions))
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
        found = embed((clip.pcm, RATE), bundle, capture=_OFF)
        assert isinstance(found.captured, CapturedVoice)
        others = [voice for speaker, voice in heard if speaker != clip.speaker]
        samples = worsen(found.captured, found.quality.measured, rng, others)
        for name in COPIES:
            made[name].append(samples.get(name))
        heard = [*heard[1 - _BABBLE_OF :], (clip.speaker, found.captured)]
    return made


def _remembered(bundle: Bundle, key: str, make: Callable[[], Mapping[str, Sequence[Sample | None]]]) -> dict[str, Rows]:
    """The rows from the cache, else made and put there. They are personal data: never commit or publish the files."""
    folder = data.cache() / "conditions" / bundle.version[:12]
    path = folder / f"{key.replace(' ', '-').replace('/', '-')}.npz"
    if not path.exists():
        arrays = {}
        for name, samples in make().items():
            rows = _embedded(samples, bundle)
            arrays |= {f"{name}|embeddings": rows.embeddings, f"{name}|measured": rows.measured}
        folder.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".draft.npz")
        np.savez(draft, **arrays)
        draft.replace(path)
    found = {}
    with np.load(path) as file:
        for name in dict.fromkeys(item.partition("|")[0] for item in file.files):
            found[name] = Rows(file[f"{name}|embeddings"], file[f"{name}|measured"])
    return found


def _embedded(samples: Sequence[Sample | None], bundle: Bundle) -> Rows:
    rows: list[Float32 | None] = []
    measured = np.full((len(samples), len(_MEASURED)), np.nan)
    for place, sample in enumerate(samples):
        rows.append(None)
        if sample is None:
            continue
        try:
            found = embed(sample, bundle, capture=_OFF)
        except SampleError:
            continue
        rows[place] = found.embedding
        measured[place] = [found.quality.measured[name] for name in _MEASURED]
    size = next(len(row) for row in rows if row is not None)
    nothing = np.full(size, np.nan, np.float32)
    return Rows(np.stack([nothing if row is None else row for row in rows]), measured)
