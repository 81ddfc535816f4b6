"""Twenty probes of each modality, through what an application calls: calibrate, enrol, verify."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from PIL import Image
from sklearn.datasets import load_digits

import uvsdk
from tests import real_data
from tests.behaviour import values
from tests.synthetic_voice import RATE, utterance
from uvsdk import cli
from uvsdk.arrays import Float32
from uvsdk.bundle import Bundle, shipped
from uvsdk.errors import SampleError
from uvsdk.training import backbones
from uvsdk.training.export import export_bundle
from uvsdk.training.graphs.sface import sface_bundle

PROBES = 20
Sample = Any
People = list[list[Sample]]
"""Samples of each person: ten of the first two, who enrol and are verified, four of the others, who calibrate."""

OTHERS = 16


def decided(name: str, folder: Path) -> dict[str, Any]:
    """Enrol the first person with a calibrated bundle, show that template twenty probes; ``name`` is of :data:`CASES`.

    Five are the person's own, five the second person's, eight are worse copies of those, two hold nobody.
    """
    bundle, (mine, other, *others) = CASES[name]()
    if bundle.calibration is None:
        bundle = _calibrated(bundle, others, folder)
    samples, store = [*map(_file, mine[:3]), *mine[3:5]], uvsdk.MemoryStore()
    rate = None if name == "handwriting" else 0.1  # so few people support no lower one
    enrollment = uvsdk.enroll("ana", samples, model=bundle, store=store, fmr=rate, outliers="keep")
    probes = [*mine[5:], *other[:5], *map(_worse, (*mine[5:], *other[5:8])), *NOBODY[bundle.manifest.modality]]
    assert len(probes) == PROBES
    decisions = [_decided(probe, enrollment.template, bundle) for probe in probes]
    found = {"enrolment": _enrolled(enrollment), "decisions": decisions}
    limit = enrollment.template.threshold
    if name == "handwriting" and limit is not None:  # the shipped file: its names do not change
        found["names"] = {"model_version": limit.model_version, "calibration": limit.calibration}
    return found


def _handwriting() -> tuple[Bundle, People]:
    digits = load_digits()
    pages = np.kron(255 - digits.images / 16 * 255, np.ones((4, 4))).astype(np.uint8)
    return shipped(), [list(pages[digits.target == digit][:10]) for digit in (3, 8)]


def _voice() -> tuple[Bundle, People]:
    """Voices made of random numbers."""
    own = [[(utterance(2.5, who, text), RATE) for text in range(10)] for who in range(2)]
    others = [[(utterance(1.8, 2 + who, text), RATE) for text in range(4)] for who in range(OTHERS)]
    return export_bundle(backbones.get("ge2e").load()), own + others


def _recorded_voice() -> tuple[Bundle, People]:
    """Speakers of LibriSpeech, cut into pieces of three seconds."""
    folder = real_data.file("speech_librispeech")
    files: dict[str, list[Path]] = {}
    with (folder / "manifest.csv").open(newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            files.setdefault(row["speaker"], []).append(folder / row["path"])
    people: People = []
    for speaker in sorted(files):
        pieces = [piece for path in files[speaker][:6] for piece in _pieces(path)]
        if len(pieces) >= 10 and len(people) < 2 + OTHERS:
            people.append(pieces[: 10 if len(people) < 2 else 4])
    return export_bundle(backbones.get("ge2e").load()), people


def _pieces(path: Path) -> list[Sample]:
    pcm, rate = soundfile.read(path, dtype="float32")
    return [(pcm[start : start + 3 * rate], rate) for start in range(0, len(pcm) - 3 * rate, 3 * rate)]


def _face() -> tuple[Bundle, People]:
    """Portraits of the ORL database."""
    with np.load(real_data.file("orl_faces.npz")) as archive:
        portraits = archive["images"].reshape(40, 10, 112, 92)
    return sface_bundle(), [list(portraits[who][: 10 if who < 2 else 4]) for who in range(2 + OTHERS)]


CASES: dict[str, Callable[[], tuple[Bundle, People]]] = {
    "handwriting": _handwriting,
    "voice": _voice,
    "recorded voice": _recorded_voice,
    "face": _face,
}

NOBODY: dict[str, list[Sample]] = {
    "handwriting": [np.full((32, 32), 255, np.uint8), np.full((32, 32), 0, np.uint8)],
    "voice": [
        (np.zeros(2 * RATE, np.float32), RATE),
        (np.random.default_rng(0).normal(0, 0.1, 2 * RATE).astype(np.float32), RATE),
    ],
    "face": [np.full((112, 92), 128, np.uint8), np.random.default_rng(0).integers(0, 256, (112, 92)).astype(np.uint8)],
}


def _worse(sample: Sample) -> Sample:
    """Noise, on an image or on the first half of a recording."""
    if isinstance(sample, tuple):
        pcm, rate = sample
        return _noisy(pcm[: len(pcm) // 2], 0.01), rate
    return _noisy(sample.astype(np.float32), 25.0).clip(0, 255).astype(np.uint8)


def _noisy(values: Float32, spread: float) -> Float32:
    return values + np.random.default_rng(values.size).normal(0, spread, values.shape).astype(np.float32)


def _calibrated(bundle: Bundle, people: People, folder: Path) -> Bundle:
    """As an operator calibrates: ``uvsdk calibrate`` on a folder of people, with copies of their samples made worse."""
    for number, samples in enumerate(people):
        place = folder / "people" / f"{number:02}"
        place.mkdir(parents=True)
        for count, sample in enumerate(samples):
            (place / f"{count}").write_bytes(_file(sample))
    bundle.save(folder / "plain.uvb")
    command = ["calibrate", str(folder / "plain.uvb"), str(folder / "people"), "--enrol", "2"]
    assert cli.main([*command, "--output", str(folder / "calibrated.uvb")]) == 0
    return Bundle.open(folder / "calibrated.uvb")


def _file(sample: Sample) -> bytes:
    if isinstance(sample, bytes):
        return sample
    file = io.BytesIO()
    if isinstance(sample, tuple):
        soundfile.write(file, *sample, format="FLAC")
    else:
        Image.fromarray(sample).save(file, "PNG")
    return file.getvalue()


def _enrolled(enrollment: uvsdk.Enrollment) -> dict[str, Any]:
    template = enrollment.template
    return {
        "template": values.of_array(template.embedding),
        "threshold": _plain(template.threshold),
        "conditions": dict(template.conditions),
        "samples": [_plain(report) for report in enrollment.samples],
        "completeness": _plain(enrollment.completeness),
        "expected fnmr": _plain(enrollment.expected_fnmr),
    }


FILES = ("model_version", "calibration")


def _decided(probe: Sample, template: uvsdk.Template, bundle: Bundle) -> dict[str, Any]:
    try:
        decision = uvsdk.verify(probe, template, model=bundle)
    except SampleError as error:
        return {"error": type(error).__name__, "reason": str(error)}
    return {
        "accepted": decision.accepted,
        "score": decision.score,
        "llr": decision.llr,
        "above": decision.value - decision.threshold.score,
        "quality": _plain(decision.quality),
    }


def _plain(record: Any) -> Any:
    """A public record as JSON has it, without the hashes of files that were made just now."""
    if record is None:
        return None
    return {key: value for key, value in dataclasses.asdict(record).items() if key not in FILES}
