"""What the presentation attack detectors do with bona fide samples and with simulated attacks.

    python -m tests.benchmarks.presentation.run --output results.csv

Needs the real data (``UVSDK_DATA``, or ``../shared/data`` beside the repository) and the weights silero-vad, yunet
and antispoof. Every number is a count with its exact 95 % interval; nothing is tuned here.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
import tarfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
import soundfile
from PIL import Image

from tests import modality_graphs, real_data
from tests.benchmarks.presentation import attacks
from uvsdk import modality
from uvsdk.arrays import Float32
from uvsdk.bundle import Bundle
from uvsdk.bundle.manifest import Manifest
from uvsdk.errors import SampleError
from uvsdk.modality import Capture
from uvsdk.modality.face.chips import CapturedFace
from uvsdk.modality.voice.frames import CapturedVoice
from uvsdk.presentation import (
    Challenge,
    Cleanliness,
    FaceClassifier,
    FaceRepetition,
    PresentationAttackDetector,
    Recollection,
    SpokenDigits,
    SpokenDigitTemplates,
    VoiceRepetition,
)
from uvsdk.presentation.head_turns import turn
from uvsdk.scoring import clopper_pearson
from uvsdk.training.graphs.antispoof import presentation_graph

KEY, SEED = bytes(range(32)), 0
CLIP_S = 6
# Recordings of each part of LibriSpeech that copies are made of.
COPIED = 60
ANY = np.zeros(1, np.float32)
OFF = Capture(quality="off", faces="largest")


@dataclass(frozen=True)
class Row:
    """``events`` of ``trials`` presentations were taken for an attack; ``truth`` says what they were."""

    detector: str
    data: str
    truth: str
    events: int
    trials: int
    rate: float
    low: float
    high: float


class Counts:
    """Verdicts by detector, data and truth."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, str], list[bool]] = defaultdict(list)

    def add(
        self,
        data: str,
        truth: str,
        detector: PresentationAttackDetector,
        captured: CapturedVoice | CapturedFace | None,
    ) -> None:
        self.note(f"{detector.name}: no answer", data, truth, captured is None)
        if captured is not None:
            self.note(detector.name, data, truth, not detector.assess(captured, ANY).bona_fide)

    def note(self, name: str, data: str, truth: str, event: bool) -> None:
        self._counts[name, data, truth].append(event)

    def rows(self) -> Iterator[Row]:
        for (name, data, truth), events in self._counts.items():
            if name.endswith("no answer") and not any(events):
                continue
            low, high = clopper_pearson(sum(events), len(events))
            yield Row(name, data, truth, sum(events), len(events), sum(events) / len(events), low, high)


def voice(pcm: Float32, rate: int = attacks.RATE) -> CapturedVoice:
    graphs = modality_graphs.loaded("voice", {})
    captured = modality.get("voice").prepare((pcm, rate), graphs, capture=OFF).captured
    assert isinstance(captured, CapturedVoice)
    return captured


def attack(pcm: Float32) -> CapturedVoice | None:
    """``None`` where no speech is found in it."""
    try:
        return voice(pcm)
    except SampleError:
        return None


def face(photo: Image.Image) -> CapturedFace | None:
    """``None`` where no face is found in it."""
    try:
        captured = modality.get("face").prepare(photo, modality_graphs.loaded("face", {}), capture=OFF).captured
    except SampleError:
        return None
    assert isinstance(captured, CapturedFace)
    return captured


def speech() -> dict[str, dict[str, list[Float32]]]:
    """Split -> speaker -> recordings; the split ``eval_test-other``, on which limits were set, is left out."""
    folder = real_data.file("speech_librispeech")
    found: dict[str, dict[str, list[Float32]]] = defaultdict(lambda: defaultdict(list))
    with (folder / "manifest.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if not row["split"].startswith("eval"):
                pcm = soundfile.read(folder / row["path"], dtype="float32")[0]
                found[row["split"]][row["speaker"]].append(pcm[: CLIP_S * attacks.RATE])
    return found


def count_repetition(counts: Counts) -> list[CapturedVoice]:
    """Bona fide recordings; gives back those that copies are made of."""
    rng = np.random.default_rng([SEED, 1])
    originals: list[CapturedVoice] = []
    for split, speakers in speech().items():
        people = [[voice(pcm) for pcm in clips] for clips in speakers.values()]
        prints = [[recollection([captured]).voices[0] for captured in clips] for clips in people]
        everyone = [known for clips in prints for known in clips]
        for clips, own in zip(people, prints, strict=True):
            for captured, fingerprint in zip(clips, own, strict=True):
                # Where a person has one recording, those of 64 others stand in for earlier ones.
                drawn = [everyone[place] for place in rng.choice(len(everyone), min(64, len(everyone)), replace=False)]
                earlier = [known for known in (own if len(own) > 1 else drawn) if known is not fingerprint]
                heard = VoiceRepetition(Recollection(KEY, tuple(earlier)))
                counts.add(f"LibriSpeech {split}", "bona fide", heard, captured)
                counts.add(f"LibriSpeech {split}", "bona fide", Cleanliness(), captured)
        originals += [captured for clips in people for captured in clips][:COPIED]
    return originals


def count_copies(counts: Counts, captured: CapturedVoice, rng: np.random.Generator) -> None:
    data, pcm = "LibriSpeech, both", captured.recorded
    heard = VoiceRepetition(recollection([captured]))
    for name, copy in attacks.COPIES.items():
        counts.add(data, f"replay, simulated: {name}", heard, attack(copy(pcm, rng)))
    nothing = VoiceRepetition(Recollection(KEY))
    counts.add(data, "looped, simulated", nothing, attack(attacks.looped(pcm, rng)))
    for name, floor in (("zeros", 0.0), ("noise at -138 dB", 1.0)):
        edited = attack(attacks.gated(pcm, rng, floor=floor))
        counts.add(data, f"pauses replaced by {name}, simulated", Cleanliness(), edited)
    wide = Cleanliness(bandwidth_hz=5000.0, name="voice-cleanliness (5 kHz asked for)")
    counts.add(data, "8 kHz copy, simulated", wide, attack(attacks.COPIES["8 kHz"](pcm, rng)))
    counts.add(data, "bona fide", wide, captured)


def recollection(earlier: list[CapturedVoice]) -> Recollection:
    known = Recollection(KEY)
    for captured in earlier:
        known = known.remember(captured)
    return known


class Digits:
    """FSDD: six speakers, twenty recordings of each digit; the first three are for enrolment."""

    def __init__(self) -> None:
        data = dict(np.load(real_data.file("fsdd_8k.npz")).items())
        self.speakers = [str(name) for name in data["speakers"]]
        self._clips: dict[tuple[int, int], list[Float32]] = defaultdict(list)
        for start, end, speaker, digit in zip(
            data["off"][:-1], data["off"][1:], data["speaker"], data["digit"], strict=True
        ):
            pcm = data["pcm"][start:end].astype(np.float32) / 32768
            self._clips[int(speaker), int(digit)].append(attacks.resampled(pcm, 8000, attacks.RATE))

    def said(
        self, speaker: int, digits: tuple[str, ...], takes: list[int], pause_s: float, rng: np.random.Generator
    ) -> CapturedVoice:
        """Digits joined by pauses, which hold a little noise, as a microphone's would."""

        def pause() -> Float32:
            return (rng.normal(size=round(pause_s * attacks.RATE)) * 1e-4).astype(np.float32)

        parts = [pause()]
        for digit, take in zip(digits, takes, strict=True):
            clip = self._clips[speaker, int(digit)][take]
            parts += [clip * np.float32(0.5 / max(float(np.abs(clip).max()), 1e-3)), pause()]
        return voice(np.concatenate(parts))


def count_digits(counts: Counts, speakers: Sequence[int] = range(6), phrases: int = 40) -> None:
    data = Digits()
    ten = tuple("0123456789")
    for speaker in speakers:
        name, rng = data.speakers[speaker], np.random.default_rng([SEED, 2, speaker])
        templates = SpokenDigitTemplates.enrol(
            [(data.said(speaker, ten, [reading] * 10, 0.25, rng), ten) for reading in range(3)]
        )
        part = f"FSDD {name} ({'limits set here' if speaker < 3 else 'held out'})"
        for number in range(phrases):
            asked, takes = phrase(rng), rng.choice(np.arange(3, 11), 6, replace=False).tolist()
            wrong = list(asked)
            place = int(rng.integers(6))
            wrong[place] = str(
                rng.choice([digit for digit in ten if digit not in asked[max(place - 1, 0) : place + 2]])
            )
            spoken = data.said(speaker, asked, takes, float(rng.uniform(0.02, 0.2)), rng)
            by_another = data.said((speaker + 1 + number % 5) % 6, asked, takes, 0.1, rng)
            counts.add(part, "bona fide", answer(asked, templates), spoken)
            counts.add(part, "one digit of six is another", answer(tuple(wrong), templates), spoken)
            counts.add(part, "an earlier phrase replayed", answer(phrase(rng), templates), spoken)
            counts.add(part, "the right digits by another person", answer(asked, templates), by_another)
            # The same digits in the same rhythm, from other recordings.
            once = recollection([data.said(speaker, asked, takes, 0.1, rng)])
            again = data.said(speaker, asked, rng.choice(np.arange(11, 20), 6, replace=False).tolist(), 0.1, rng)
            counts.add("FSDD, six speakers", "bona fide: the same digits again", VoiceRepetition(once), again)
            order = rng.permutation(6)
            joined = data.said(speaker, tuple(np.array(asked)[order]), np.array(takes)[order].tolist(), 0.083, rng)
            counts.add(
                "FSDD, six speakers", "digits cut from an earlier phrase, simulated", VoiceRepetition(once), joined
            )
            counts.add("FSDD, six speakers", "bona fide", Cleanliness(), spoken)


def answer(steps: tuple[str, ...], templates: SpokenDigitTemplates) -> SpokenDigits:
    return SpokenDigits(Challenge("0" * 32, "digits", steps, 0.0, 30.0), templates, 10.0)


def phrase(rng: np.random.Generator) -> tuple[str, ...]:
    digits: list[str] = []
    while len(digits) < 6:
        digit = str(rng.integers(10))
        if digits[-1:] != [digit]:
            digits.append(digit)
    return tuple(digits)


def count_faces(counts: Counts) -> None:
    graph = presentation_graph()
    manifest = Manifest("face", "none", 1, {}, (), ())
    carrier = Bundle(manifest, np.empty(0, np.float32), {"embedding": b""}, presentation=graph)
    classifier = FaceClassifier.of(carrier)
    for data, photos in (("LFW fold 1, odd", lfw()), ("ORL", orl())):
        earlier: dict[str, CapturedFace] = {}
        for index, (person, photo) in enumerate(photos):
            captured = face(photo)
            counts.add(data, "bona fide", classifier, captured)
            if captured is None:
                continue
            counts.note("turn", data, "looks straight: |turn| at most 0.15", abs(turn(captured.face.landmarks)) <= 0.15)
            counts.note("turn", data, "is turned: |turn| at least 0.30", abs(turn(captured.face.landmarks)) >= 0.30)
            if person in earlier:
                known = FaceRepetition(Recollection(KEY).remember(earlier[person]))
                counts.add(data, "bona fide: another picture of the person", known, captured)
            earlier[person] = captured
            if index % 3:
                continue
            same = FaceRepetition(Recollection(KEY).remember(captured))
            for name, change in attacks.PICTURES.items():
                counts.add(data, f"replay, simulated: {name}", same, face(change(photo)))
            for name, change in (("print", attacks.printed), ("screen", attacks.on_screen)):
                counts.add(data, f"{name}, simulated", classifier, face(change(photo)))


def lfw() -> list[tuple[str, Image.Image]]:
    """Every other photo, those on which the classifier's limit was not set."""
    with tarfile.open(real_data.file("lfw_fold1_originals.tar")) as archive:
        names = [name for name in archive.getnames() if name.lower().endswith(".jpg")]
        opened = [(name, archive.extractfile(name)) for name in names[1::2]]
        return [
            (Path(name).stem.rsplit("_", 1)[0], Image.open(io.BytesIO(file.read())).convert("RGB"))
            for name, file in opened
            if file is not None
        ]


def orl() -> list[tuple[str, Image.Image]]:
    data = np.load(real_data.file("orl_faces.npz"))
    return [
        (str(subject), Image.fromarray(pixels).convert("RGB"))
        for subject, pixels in zip(data["subject"], data["images"], strict=True)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("results.csv"))
    arguments = parser.parse_args()
    counts, start = Counts(), time.process_time()
    count_digits(counts)
    count_faces(counts)
    for number, captured in enumerate(count_repetition(counts)):
        count_copies(counts, captured, np.random.default_rng([SEED, 3, number]))
    print(f"{time.process_time() - start:.0f} s of CPU", file=sys.stderr)
    write(counts, arguments.output)
    return 0


def write(counts: Counts, path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([field.name for field in fields(Row)])
        for row in counts.rows():
            writer.writerow([f"{value:.4f}" if isinstance(value, float) else value for value in astuple(row)])
            print(f"{row.detector:36} {row.data:32} {row.truth:52} {row.events}/{row.trials} {row.rate:.3f}")


if __name__ == "__main__":
    sys.exit(main())
