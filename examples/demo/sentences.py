"""Sentences out of single clips: so many of one person's letters or syllables, said one after the other."""

from __future__ import annotations

import wave
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from data import VOICES_PACKAGE, People, Person

from uvsdk.modality import Limits
from uvsdk.modality.voice import audio

CLIPS = 5
"""Clips in a sentence: some 0.5 s of speech each, so nearly 3 s in all."""
_MOST = 8
"""Sentences of one person to enrol with, and as many to verify with."""
_LEAST = 3 * CLIPS
"""Letters and syllables that a person needs of each for the two to be told apart."""
_RATE = 16_000

_OTHER_LETTERS = frozenset({"de"})
"""Languages whose letters somebody else spoke than their syllables: the means of the two are as far apart as strangers'
(cosine 0.05 under CAM++, where 0.62 is the least of all others). Only the syllables are used."""
_TOO_NOISY = frozenset({"ar"})
"""Languages of whose joined clips about half have too little speech over noise for enrolment. They are left out."""


def spoken(people: People, folder: Path) -> People:
    """The voices of ``klettres-data`` with sentences in place of their clips.

    Args:
        people: who enrol by letters and are verified by syllables, one clip a sample.
        folder: where the sentences are written; one that is there already stays as it is.

    Raises:
        UndecodableSampleError, SampleTooLargeError: of a clip.
        OSError: a sentence cannot be written.
    """
    found = tuple(_speaking(person, folder) for person in people.people if person.name not in _TOO_NOISY)
    source = (
        f"{VOICES_PACKAGE} ({len(found)} languages, each taken as a person; {CLIPS} letters or syllables a sentence)"
    )
    return replace(people, people=found, source=source)


def _speaking(person: Person, folder: Path) -> Person:
    enrol, verify = dealt(() if person.name in _OTHER_LETTERS else person.enrol, person.verify)
    return Person(
        person.name,
        joined(enrol, folder / person.name / "enrol", most=_MOST),
        joined(verify, folder / person.name / "verify", most=_MOST),
        single=tuple(verify),
    )


def dealt(letters: Sequence[Path], syllables: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Clips to enrol with and others to verify with: letters and syllables where there are enough of each, else all
    of both in turn.

    >>> few, many = [Path(f"a{n}") for n in range(2)], [Path(f"s{n:02}") for n in range(30)]
    >>> [len(clips) for clips in dealt(few, many)], [len(clips) for clips in dealt(many[:15], many[15:])]
    ([16, 16], [15, 15])
    """
    if min(len(letters), len(syllables)) >= _LEAST:
        return list(letters), list(syllables)
    clips = [*letters, *syllables]
    return clips[::2], clips[1::2]


def joined(clips: Sequence[Path], folder: Path, *, most: int) -> tuple[Path, ...]:
    """Recordings of :data:`CLIPS` clips each, no clip in two of them; what is left over is left out.

    Neighbours by name go to different sentences, for they sound alike.

    Args:
        clips: of one person.
        folder: where the recordings are written, 16 kHz and 16 bits; one that is there already stays as it is.
        most: recordings.

    Raises:
        UndecodableSampleError, SampleTooLargeError: of a clip.
        OSError: a recording cannot be written.
    """
    count = min(most, len(clips) // CLIPS)
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for number in range(count):
        path = folder / f"{number:02}-of-{count}.wav"
        if not path.exists():
            _write(np.concatenate([_decoded(clip) for clip in clips[number :: len(clips) // CLIPS][:CLIPS]]), path)
        made.append(path)
    return tuple(made)


def _decoded(clip: Path) -> np.ndarray:
    pcm, rate = audio.decode(clip, Limits())
    return audio.resample(pcm, rate, _RATE)


def _write(pcm: np.ndarray, path: Path) -> None:
    # Under another name until it is whole, for a later run takes what it finds.
    part = path.with_suffix(".part")
    with wave.open(str(part), "wb") as recording:
        recording.setnchannels(1)
        recording.setsampwidth(2)
        recording.setframerate(_RATE)
        recording.writeframes(np.rint(np.clip(pcm, -1, 1) * 32767).astype("<i2").tobytes())
    part.replace(path)
