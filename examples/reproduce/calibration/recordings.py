"""The recordings of the calibration table, each as it is and under every condition, embedded once."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from uvsdk.bundle import Bundle
from uvsdk.bundle.inference import embed
from uvsdk.errors import SampleError
from uvsdk.evaluation.observations import ORIGINAL, Observations
from uvsdk.modality import Capture
from uvsdk.modality.voice import MODALITY
from uvsdk.modality.voice.degradation import Recording, mix, worse_recording, worsen
from uvsdk.modality.voice.frames import CapturedVoice
from uvsdk.scoring.conditions import conditions_of

FULL = ORIGINAL
CUTS = {"3 s": Recording(speech_s=3.0), "1.5 s": Recording(speech_s=1.5)}
"""Seconds of sound, pauses included; those of ``uvsdk calibrate`` are seconds of speech."""

MADE_BY_CALIBRATE = ("8 kHz", "10 dB")
"""Measured on the copies that ``uvsdk calibrate`` makes, of people whom it never saw; the noise is white."""

BROWN = "10 dB brown"
"""A noise that no calibration copy has: 6 dB less an octave."""

RECORDINGS_A_SPEAKER = 10
"""Three speakers have twenty; no one should weigh so much."""

_OFF = Capture(quality="off")


@dataclass(frozen=True, slots=True, eq=False)
class Embedded:
    """Rows for calibration copies and for what is measured, with what could not be used.

    Args:
        observed: everything; its copies are those of ``uvsdk calibrate`` and, after ``measured:``, those above.
        speakers: names, by person index.
        failures: name of a copy or condition -> samples that gave nothing.
    """

    observed: Observations
    speakers: tuple[str, ...]
    failures: dict[str, int]


def measured_name(condition: str) -> str:
    """The copy under which a measured condition is kept, apart from the calibration's own of the same name."""
    return condition if condition == FULL or condition in MADE_BY_CALIBRATE else f"measured: {condition}"


def embedded(root: Path, bundle: Bundle, seed: int) -> Embedded:
    """Embed every recording of LibriSpeech's three parts in every way (some 5,000 embeddings)."""
    rng = np.random.default_rng(seed)
    with (root / "manifest.csv").open(newline="") as lines:
        files = _few(list(csv.DictReader(lines)))
    speakers = tuple(sorted({row["speaker"] for row in files}))
    rows: list[tuple[NDArray[np.float32], int, int, str, dict[str, float]]] = []
    failures: dict[str, int] = {}
    heard: list[tuple[str, CapturedVoice]] = []
    for index, row in enumerate(files):
        original = embed(root / row["path"], bundle, capture=_OFF)
        voice = original.captured
        assert isinstance(voice, CapturedVoice)
        person = speakers.index(row["speaker"])
        rows.append(
            (original.embedding, person, index, FULL, conditions_of(original.quality.measured, MODALITY.conditions))
        )
        others = [item for speaker, item in heard if speaker != row["speaker"]]
        made = worsen(voice, original.quality.measured, rng, others)
        for name, recording in CUTS.items():
            made[measured_name(name)] = worse_recording(voice.recorded, voice.rate, recording, rng=rng)
        made[measured_name(BROWN)] = (
            mix(voice.recorded, np.cumsum(rng.standard_normal(len(voice.recorded))), 10.0),
            voice.rate,
        )
        for name, sample in made.items():
            try:
                copy = embed(sample, bundle, capture=_OFF)
            except SampleError:
                failures[name] = failures.get(name, 0) + 1
                continue
            rows.append(
                (copy.embedding, person, index, name, conditions_of(copy.quality.measured, MODALITY.conditions))
            )
        heard = [*heard[-11:], (row["speaker"], voice)]
    names = (FULL, *sorted({row[3] for row in rows} - {FULL}))
    found = Observations(
        np.stack([row[0] for row in rows]),
        np.array([row[1] for row in rows], np.int64),
        np.array([row[2] for row in rows], np.int64),
        np.array([names.index(row[3]) for row in rows], np.int64),
        np.ones(len(rows), np.bool_),
        tuple(row[4] for row in rows),
        names,
        MODALITY.conditions,
    )
    return Embedded(found, speakers, failures)


def _few(files: list[dict[str, str]]) -> list[dict[str, str]]:
    """At most so many recordings of one speaker, in the order of the manifest."""
    counts: dict[str, int] = {}
    kept = []
    for row in files:
        counts[row["speaker"]] = counts.get(row["speaker"], 0) + 1
        if counts[row["speaker"]] <= RECORDINGS_A_SPEAKER:
            kept.append(row)
    return kept


def only(seen: Observations, names: list[str]) -> Observations:
    """The rows of some copies."""
    kept = np.isin(seen.copy, [seen.copies.index(name) for name in names])
    place = {seen.copies.index(name): index for index, name in enumerate(names)}
    return Observations(
        seen.embeddings[kept],
        seen.person[kept],
        seen.recording[kept],
        np.array([place[int(copy)] for copy in seen.copy[kept]], np.int64),
        seen.enrolled[kept],
        tuple(item for item, keep in zip(seen.conditions, kept, strict=True) if keep),
        tuple(names),
        seen.kinds,
    )


def save(path: Path, found: Embedded) -> None:
    """Keep the embeddings for the next run. They are personal data: never commit or publish the file."""
    seen = found.observed
    values = np.array([[item.get(kind.name, np.nan) for kind in seen.kinds] for item in seen.conditions])
    np.savez(
        path,
        embeddings=seen.embeddings,
        person=seen.person,
        recording=seen.recording,
        copy=seen.copy,
        conditions=values,
        copies=np.array(seen.copies),
        speakers=np.array(found.speakers),
        failed=np.array(list(found.failures), dtype=np.str_),
        counts=np.array(list(found.failures.values()), np.int64),
    )


def load(path: Path) -> Embedded:
    """What :func:`save` kept."""
    with np.load(path) as file:
        kept = dict(file.items())
    conditions = tuple(
        {kind.name: float(value) for kind, value in zip(MODALITY.conditions, row, strict=True) if np.isfinite(value)}
        for row in kept["conditions"]
    )
    seen = Observations(
        kept["embeddings"],
        kept["person"],
        kept["recording"],
        kept["copy"],
        np.ones(len(conditions), np.bool_),
        conditions,
        tuple(kept["copies"].tolist()),
        MODALITY.conditions,
    )
    failures = dict(zip(kept["failed"].tolist(), kept["counts"].tolist(), strict=True))
    return Embedded(seen, tuple(kept["speakers"].tolist()), failures)
