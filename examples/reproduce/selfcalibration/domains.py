"""The domains of the table: whose samples they are, and how a person comes to several of them. Embedded once."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray
from PIL import Image

from examples.reproduce import data
from examples.reproduce.lfw import run as lfw_run
from examples.reproduce.lfw import unpack
from uvsdk import modality
from uvsdk.bundle import Bundle
from uvsdk.bundle.inference import embed
from uvsdk.errors import SampleError
from uvsdk.modality import Capture, Sample
from uvsdk.modality.voice.degradation import Recording, worse_recording

WINDOWS = 5
"""Samples that are cut from a recording of somebody who has no other."""

DIGITS = 5
"""Spoken digits in a sample; one alone is 0.4 s long."""

_RATE = 16_000
_OFF = Capture(quality="off", faces="largest")


@dataclass(frozen=True, slots=True, eq=False)
class Embedded:
    """Everybody's samples under one frozen model.

    Args:
        name: of the domain.
        rows: float32 (n, d), unit.
        person: int64 (n,), from 0 on.
        recording: int64 (n,): samples of one number were cut from one recording.
        conditions: float64 (n, k), a column for each condition of the modality, NaN where it was not measured.
    """

    name: str
    rows: NDArray[np.float32]
    person: NDArray[np.int64]
    recording: NDArray[np.int64]
    conditions: NDArray[np.float64]

    @property
    def people(self) -> int:
        """How many."""
        return int(self.person.max()) + 1


Item = tuple[str, str, Sample]
"""Person, recording, sample."""


def embedded(name: str, bundle: Bundle, kept: Path) -> Embedded:
    """A domain under a frozen model; from the cache where it was embedded before.

    The cache holds embeddings of people, which are personal data: never commit or publish it.
    """
    path = kept / f"{bundle.version[:12]}-{name.replace(' ', '-')}.npz"
    if not path.exists():
        rows, people, recordings, conditions = [], [], [], []
        kinds = modality.get(bundle.manifest.modality).conditions
        for person, recording, sample in DOMAINS[name]():
            try:
                row, measured = _embed(sample, bundle)
            except SampleError:
                continue
            rows.append(row)
            people.append(person)
            recordings.append(recording)
            conditions.append([measured.get(kind.name, np.nan) for kind in kinds])
        person_index = np.unique(np.array(people), return_inverse=True)[1]
        recording_index = np.unique(np.array(recordings), return_inverse=True)[1]
        kept.mkdir(parents=True, exist_ok=True)
        np.savez(path, rows=np.stack(rows), person=person_index, recording=recording_index, conditions=conditions)
    with np.load(path) as file:
        return Embedded(
            name,
            file["rows"],
            file["person"].astype(np.int64),
            file["recording"].astype(np.int64),
            file["conditions"].astype(np.float64),
        )


def _embed(sample: Sample, bundle: Bundle) -> tuple[NDArray[np.float32], dict[str, float]]:
    if isinstance(sample, Chip):
        return lfw_run.chip_embedding(bundle, sample.jpeg), {}
    found = embed(sample, bundle, capture=_OFF)
    return found.embedding, dict(found.quality.measured)


@dataclass(frozen=True, slots=True)
class Chip:
    """A face that is aligned already, so that nothing is detected in it."""

    jpeg: bytes


def opened(chip: Chip) -> Image.Image:
    """Its picture, RGB."""
    return Image.open(io.BytesIO(chip.jpeg)).convert("RGB")


def read_speech(seconds: float, worse: Recording | None = None) -> Iterator[Item]:
    """LibriSpeech: of whoever has one clip of 5 s windows of it, of others one window of each of ten recordings."""
    root = data.folder() / "speech_librispeech"
    rng = np.random.default_rng(2026)
    with (root / "manifest.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    files: dict[str, list[str]] = {}
    for row in sorted(rows, key=lambda item: item["split"] == "cohort_train-clean-100"):
        files.setdefault(row["speaker"], []).append(row["path"])
    for speaker, paths in sorted(files.items()):
        for path in paths[:10]:
            pcm, rate = soundfile.read(root / path, dtype="float32")
            length = round(seconds * rate)
            windows = WINDOWS if len(paths) == 1 else 1
            for start in np.linspace(0, max(len(pcm) - length, 0), windows + (windows == 1)).astype(int)[:windows]:
                cut = np.ascontiguousarray(pcm[start : start + length])
                yield speaker, path, (cut, rate) if worse is None else worse_recording(cut, rate, worse, rng=rng)


def letters() -> Iterator[Item]:
    """One speaker for each language of ``klettres-data``; three letters or syllables one after the other."""
    root = data.named("UVSDK_KLETTRES", "/usr/share/klettres")
    return _joined({path.name: sorted(path.glob("*/*.ogg")) for path in root.iterdir() if path.is_dir()}, 3)


def words() -> Iterator[Item]:
    """One speaker for each language of ``ktuberling-data`` (three spellings of Serbian are one); two words together."""
    root = data.named("UVSDK_KTUBERLING", "/usr/share/ktuberling/sounds")
    folders = [path for path in root.iterdir() if path.is_dir() and "@" not in path.name]
    return _joined({path.name: sorted(path.glob("*.[ow][ga][gv]")) for path in folders}, 2)


def _joined(speakers: dict[str, list[Path]], together: int) -> Iterator[Item]:
    for speaker, paths in sorted(speakers.items()):
        clips = paths[: 30 * together]
        for place in range(0, len(clips) - together + 1, together):
            parts = [_resampled(*soundfile.read(path, dtype="float32")) for path in clips[place : place + together]]
            yield speaker, f"{speaker}/{place}", (np.concatenate(parts), _RATE)


def digits() -> Iterator[Item]:
    """Six people of the Free Spoken Digit Dataset; five digits one after the other, at 8 kHz."""
    with np.load(data.folder() / "fsdd_8k.npz") as file:
        pcm, offsets, speaker = file["pcm"], file["off"], file["speaker"]
        order = np.lexsort((file["digit"], file["index"], speaker))
    for person in np.unique(speaker):
        own = [place for place in order if speaker[place] == person]
        for start in range(0, len(own) - DIGITS + 1, DIGITS):
            parts = [pcm[offsets[place] : offsets[place + 1]] for place in own[start : start + DIGITS]]
            yield str(person), f"{person}/{start}", (np.concatenate(parts).astype(np.float32) / 32768.0, 8_000)


def press_photographs() -> Iterator[Item]:
    """LFW, folds 2 to 5 (the card of the face model was measured on fold 1), at most ten photographs of a person."""
    packed = unpack.load()
    first = {packed.names[index].split("/")[0] for index in packed.pairs[packed.fold == 0].ravel()}
    counts: dict[str, int] = {}
    for index, name in enumerate(packed.names):
        person = name.split("/")[0]
        counts[person] = counts.get(person, 0) + 1
        if person not in first and counts[person] <= 10:
            yield person, name, Chip(packed.chip(index))


def laboratory_photographs() -> Iterator[Item]:
    """ORL: forty people, ten photographs each, grey."""
    with np.load(data.folder() / "orl_faces.npz") as file:
        images, subjects = file["images"], file["subject"]
    for number, (image, subject) in enumerate(zip(images, subjects.tolist(), strict=True)):
        yield str(subject), str(number), Image.fromarray(image).convert("RGB")


def _resampled(pcm: NDArray[np.float32], rate: int) -> NDArray[np.float32]:
    import soxr

    mono = pcm if pcm.ndim == 1 else pcm.mean(axis=1)
    return np.asarray(soxr.resample(mono, rate, _RATE, quality="HQ"), np.float32)


VOICES: dict[str, Callable[[], Iterator[Item]]] = {
    "read speech": lambda: read_speech(2.5),
    "read speech, 8 kHz, 10 dB": lambda: read_speech(2.5, Recording(rate=8_000, snr_db=10.0, noise="pink")),
    "read speech, 1.5 s": lambda: read_speech(1.5),
    "letters": letters,
    "words": words,
    "digits": digits,
}
FACES: dict[str, Callable[[], Iterator[Item]]] = {
    "press photographs": press_photographs,
    "laboratory photographs": laboratory_photographs,
}
DOMAINS = {**VOICES, **FACES}
