"""Embeddings of the real sets, made once with two bundles and kept in a folder outside the repository."""

from __future__ import annotations

import argparse
import csv
import io
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
from PIL import Image

from uvsdk.arrays import Array, Float32, Int64, UInt8
from uvsdk.bundle import Bundle
from uvsdk.bundle.inference import embed
from uvsdk.errors import SampleError
from uvsdk.modality.face import alignment

SHORT_S = 3.5
"""Length of the short clips: about 3 s of speech."""


@dataclass(frozen=True, slots=True)
class People:
    """Embeddings of one set: float32 (n, d) unit rows, and who each is of."""

    rows: Float32
    person: Int64


@dataclass(frozen=True, slots=True)
class Sets:
    """What is evaluated, and by modality the strangers that thresholds are measured on: no person is in both."""

    evaluated: dict[str, tuple[str, People]]
    strangers: dict[str, People]


def arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments :func:`load` needs."""
    here = Path(__file__).resolve()
    parser.add_argument("--data", type=Path, default=here.parents[4] / "shared" / "data")
    parser.add_argument("--voice", type=Path, required=True, help="a ge2e bundle: uvsdk export ge2e")
    parser.add_argument("--face", type=Path, required=True, help="an sface bundle: uvsdk export sface")
    parser.add_argument("--cache", type=Path, required=True, help="folder for embeddings; personal data, delete it")


def load(parsed: argparse.Namespace) -> Sets:
    """The real sets, embedded; from ``--cache`` where they are there for these very models."""
    voice, face = Bundle.open(parsed.voice), Bundle.open(parsed.face)
    parsed.cache.mkdir(parents=True, exist_ok=True)
    names = ("full", "short", "cohort", "lfw", "orl")
    files = {name: parsed.cache / f"{name}-{(voice if name in names[:3] else face).version[:12]}.npz" for name in names}
    makers = {
        "full": lambda: _voices(voice, parsed.data, "eval_test-other", None),
        "short": lambda: _voices(voice, parsed.data, "eval_test-other", SHORT_S),
        "cohort": lambda: _voices(voice, parsed.data, "cohort_train-clean-100", None),
        "lfw": lambda: _lfw(face, parsed.data),
        "orl": lambda: _orl(face, parsed.data),
    }
    found = {}
    for name, file in files.items():
        if not file.exists():
            people = makers[name]()
            np.savez(file, rows=people.rows, person=people.person)
        content = dict(np.load(file))
        found[name] = People(content["rows"], content["person"])
    several, single = _by_pictures(found["lfw"])
    return Sets(
        {
            "LibriSpeech, 10 readers": ("voice", found["full"]),
            "LibriSpeech, 3.5 s clips": ("voice", found["short"]),
            "LFW": ("face", several),
            "ORL": ("face", found["orl"]),
        },
        {"voice": found["cohort"], "face": single},
    )


def _by_pictures(lfw: People) -> tuple[People, People]:
    """People with several pictures, who are evaluated, and those with one, who are the strangers."""
    _, where, counts = np.unique(lfw.person, return_inverse=True, return_counts=True)
    single = counts[where] == 1
    return (
        People(lfw.rows[~single], lfw.person[~single]),
        People(lfw.rows[single], lfw.person[single]),
    )


def _voices(bundle: Bundle, data: Path, split: str, seconds: float | None) -> People:
    folder = data / "speech_librispeech"
    rows, person = [], []
    with (folder / "manifest.csv").open(newline="", encoding="utf-8") as lines:
        for line in csv.DictReader(lines):
            if line["split"] != split:
                continue
            pcm, rate = soundfile.read(folder / line["path"], dtype="float32")
            try:
                rows.append(embed((pcm[: None if seconds is None else int(seconds * rate)], rate), bundle).embedding)
            except SampleError as error:
                print(f"not used: {line['path']}: {error}")
                continue
            person.append(int(line["speaker"]))
    return People(np.stack(rows), np.array(person, np.int64))


def _lfw(bundle: Bundle, data: Path) -> People:
    content = dict(np.load(data / "lfw_folds1-5_aligned112.npz"))
    off = content["off"]
    chips = (
        np.asarray(Image.open(io.BytesIO(content["jpeg"][start:end].tobytes())).convert("RGB"), np.uint8)
        for start, end in itertools.pairwise(off)
    )
    return People(_chips(bundle, chips), content["person"].astype(np.int64))


def _orl(bundle: Bundle, data: Path) -> People:
    content: dict[str, Array] = dict(np.load(data / "orl_faces.npz"))
    template = alignment.TEMPLATES["arcface"]
    chips = (
        np.asarray(
            alignment.warp(
                Image.fromarray(picture).convert("RGB"), template.fit(landmarks, template.size), template.size
            )
        )
        for picture, landmarks in zip(content["images"], content["landmarks5"], strict=True)
    )
    return People(_chips(bundle, chips), content["subject"].astype(np.int64))


def _chips(bundle: Bundle, chips: Iterable[UInt8]) -> Float32:
    return np.stack([bundle.embedding(chip.transpose(2, 0, 1)[None].astype(np.float32)) for chip in chips])
