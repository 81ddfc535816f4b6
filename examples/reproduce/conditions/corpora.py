"""The recordings that are sent through the conditions: read English, and letters of seventeen other languages."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import soundfile
import soxr

from examples.reproduce import data
from examples.reproduce.conditions.codecs import RATE
from examples.reproduce.conditions.conditions import Clip
from uvsdk.arrays import Float32

CLIP_S = 5.0
"""Seconds of each recording, so that all conditions but the short ones are of one length."""

PARTICIPANTS = Path(__file__).parent / "participants.txt"
"""The speakers of LibriSpeech who took part in training the federated head (:mod:`.head`), one a line."""

_CLIPS_A_SPEAKER = 8
_SPOKEN_CLIPS = 6
_JUDGED = 5
_PAUSE_S = 0.2
_ENGLISH = ("en", "en_GB")
_SILENT = ("ar",)
"""Most of its joined clips hold too little that is taken for speech."""
_TWO_SPEAKERS = ("de",)
"""Letters and syllables were spoken by two people."""


def librispeech() -> list[Clip]:
    """The first 5 s of at most eight recordings of everybody who took no part in training the head, in the order of the
    manifest; one that is there twice, once.
    """
    root = data.folder() / "speech_librispeech"
    if not (root / "manifest.csv").exists():
        raise data.MissingDataError(f"{root} is absent (examples/reproduce/librispeech/README.md says what it is)")
    with (root / "manifest.csv").open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    took_part = frozenset(PARTICIPANTS.read_text(encoding="utf-8").split())
    counts, found = Counter[str](), dict[bytes, Clip]()
    for row in rows:
        if row["speaker"] in took_part or counts[row["speaker"]] == _CLIPS_A_SPEAKER:
            continue
        pcm, rate = soundfile.read(root / row["path"], dtype="float32", stop=round(CLIP_S * RATE))
        assert rate == RATE
        if pcm.tobytes() not in found:
            found[pcm.tobytes()] = Clip(row["path"], row["speaker"], pcm)
            counts[row["speaker"]] += 1
    return list(found.values())


def judged(clips: Sequence[Clip]) -> list[int]:
    """The places of those recordings of read English that every model is judged on: of people with several the first
    five, and of the others every second. All of them are there for thresholds, and for babble.
    """
    counts = Counter(clip.speaker for clip in clips)
    seen, alone, found = Counter[str](), 0, list[int]()
    for place, clip in enumerate(clips):
        seen[clip.speaker] += 1
        alone += counts[clip.speaker] == 1
        if seen[clip.speaker] <= _JUDGED if counts[clip.speaker] > 1 else alone % 2:
            found.append(place)
    return found


def languages() -> list[Clip]:
    """Letters, and syllables, one after the other to 5 s, at most six such clips a speaker."""

    def joined(parts: Sequence[Float32]) -> Iterator[Float32]:
        pause, held = np.zeros(round(_PAUSE_S * RATE), np.float32), np.zeros(0, np.float32)
        for part in parts:
            held = np.concatenate([held, part, pause])
            if len(held) >= CLIP_S * RATE:
                yield held[: round(CLIP_S * RATE)]
                held = held[:0]

    return _spoken(joined)


def letters(count: int) -> list[Clip]:
    """So many letters or syllables one after the other, at most six such clips a speaker."""

    def joined(parts: Sequence[Float32]) -> Iterator[Float32]:
        pause = np.zeros(round(_PAUSE_S * RATE), np.float32)
        for start in range(0, len(parts) - count + 1, count):
            yield np.concatenate([item for part in parts[start : start + count] for item in (part, pause)])

    return _spoken(joined)


def _spoken(joined: Callable[[Sequence[Float32]], Iterator[Float32]]) -> list[Clip]:
    root = data.named("UVSDK_KLETTRES", "/usr/share/klettres")
    found: dict[str, list[Clip]] = {}
    for home in sorted(path for path in root.iterdir() if path.name not in (*_ENGLISH, *_SILENT)):
        for kind in ("alpha", "syllab"):
            files = sorted((home / kind).glob("*.ogg"))
            speaker = f"{home.name} {kind}" if home.name in _TWO_SPEAKERS else home.name
            clips = joined([_read(path) for path in files])
            own = [Clip(f"{home.name} {kind} {place}", speaker, pcm) for place, pcm in enumerate(clips)]
            found.setdefault(speaker, []).extend(own)
    return [clip for own in found.values() if own for clip in _evenly(own)]


def _read(path: Path) -> Float32:
    pcm, rate = soundfile.read(path, dtype="float32", always_2d=True)
    return np.ascontiguousarray(soxr.resample(pcm.mean(axis=1), rate, RATE, quality="HQ"), np.float32)


def _evenly(clips: Sequence[Clip]) -> list[Clip]:
    count = min(len(clips), _SPOKEN_CLIPS)
    return [clips[place] for place in np.linspace(0, len(clips) - 1, count).round().astype(int).tolist()]


CORPORA: Final[Mapping[str, Callable[[], list[Clip]]]] = {
    "librispeech": librispeech,
    "languages": languages,
    "letter": lambda: letters(1),
    "five letters": lambda: letters(5),
}
"""Name -> its recordings."""
