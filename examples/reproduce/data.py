"""The data that the reproductions read; none of it is part of this repository (README.md says where it is from)."""

from __future__ import annotations

import csv
import io
import itertools
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image


class MissingDataError(SystemExit):
    """The data is not there; the message says where it was looked for."""


def folder() -> Path:
    """``$UVSDK_DATA``, else ``../shared/data`` beside the repository."""
    named = os.environ.get("UVSDK_DATA")
    path = Path(named) if named else Path(__file__).resolve().parents[3] / "shared" / "data"
    if not path.is_dir():
        raise MissingDataError(
            f"no data at {path}; set UVSDK_DATA to a folder that has it (examples/reproduce/README.md)"
        )
    return path


def named(variable: str, otherwise: str) -> Path:
    """The folder that an environment variable names, else another."""
    path = Path(os.environ.get(variable, otherwise))
    if not path.is_dir():
        raise MissingDataError(f"no data at {path}; set {variable} to a folder that has it")
    return path


def cache() -> Path:
    """A folder outside the repository for what is derived from the data (decoded images)."""
    path = Path(os.environ.get("UVSDK_CACHE", Path.home() / ".cache" / "uvsdk")) / "reproduce"
    path.mkdir(parents=True, exist_ok=True)
    return path


def readers() -> dict[tuple[bool, str], list[str]]:
    """LibriSpeech recordings below ``speech_librispeech``, by whether their part has one of each reader, and reader."""
    found: dict[tuple[bool, str], list[str]] = {}
    with (folder() / "speech_librispeech" / "manifest.csv").open(newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            found.setdefault((row["split"].startswith("cohort"), row["speaker"]), []).append(row["path"])
    return found


def _arrays(name: str) -> dict[str, NDArray[np.generic]]:
    path = folder() / name
    if not path.exists():
        raise MissingDataError(f"{path} is absent (examples/reproduce/README.md says what it is)")
    with np.load(path) as archive:
        return {key: archive[key] for key in archive.files}


@dataclass(frozen=True, slots=True)
class Images:
    """Training and test images, uint8 (n, height, width[, 3]), and their classes, int64 (n,)."""

    x_train: NDArray[np.uint8]
    y_train: NDArray[np.int64]
    x_test: NDArray[np.uint8]
    y_test: NDArray[np.int64]


def mnist() -> Images:
    """MNIST: 60,000 and 10,000 images of 28 x 28."""
    found = _arrays("mnist.npz")
    return Images(
        found["x_train"].astype(np.uint8),
        found["y_train"].astype(np.int64),
        found["x_test"].astype(np.uint8),
        found["y_test"].astype(np.int64),
    )


def cifar10() -> Images:
    """CIFAR-10 from a lossy JPEG copy, decoded once: 50,000 and 10,000 images of 32 x 32 x 3, sorted by class."""
    kept = cache() / "cifar10.npz"
    if not kept.exists():
        found = _arrays("cifar10_jpeg.npz")
        parts = {}
        for part in ("train", "test"):
            blob, offsets = found[f"jpeg_{part}"], found[f"off_{part}"]
            images = [
                np.array(Image.open(io.BytesIO(blob[start:end].tobytes())).convert("RGB"))
                for start, end in itertools.pairwise(offsets)
            ]
            parts[f"x_{part}"] = np.stack(images)
            parts[f"y_{part}"] = found[f"y_{part}"].astype(np.int64)
        draft = kept.with_suffix(f".{os.getpid()}.npz")
        np.savez(draft, **parts)
        draft.replace(kept)
    with np.load(kept) as archive:
        return Images(archive["x_train"], archive["y_train"], archive["x_test"], archive["y_test"])


@dataclass(frozen=True, slots=True)
class MultiLabel:
    """Sparse binary features and label sets in CSR form: indices and row pointers."""

    x_indices: NDArray[np.int64]
    x_pointers: NDArray[np.int64]
    y_indices: NDArray[np.int64]
    y_pointers: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.x_pointers) - 1


@dataclass(frozen=True, slots=True)
class Bibtex:
    """Bibtex: 4,880 training and 2,515 test instances, 1,836 features, 159 labels."""

    train: MultiLabel
    test: MultiLabel
    features: int
    labels: int


def bibtex() -> Bibtex:
    """The Bibtex set of Katakis et al. 2008."""
    found = _arrays("bibtex.npz")
    parts = [
        MultiLabel(
            *(found[f"{side}_{part}_{what}"].astype(np.int64) for side in "XY" for what in ("indices", "indptr"))
        )
        for part in ("train", "test")
    ]
    return Bibtex(parts[0], parts[1], int(found["X_train_shape"][1]), int(found["Y_train_shape"][1]))


@dataclass(frozen=True, slots=True)
class Speakers:
    """Read speech of 200 speakers, 100 utterances each: float32 (n, 200, 40) log-mel frames, int64 (n,) speakers."""

    features: NDArray[np.float32]
    speaker: NDArray[np.int64]


def speakers() -> Speakers:
    """The 200-speaker corpus; per-utterance mean removed, 10 ms frames."""
    found = _arrays("korean_logmel40_200x100.npz")
    low, high = float(found["lo"]), float(found["hi"])
    levels = found["feat"].astype(np.float32)
    return Speakers(levels * np.float32((high - low) / 255.0) + np.float32(low), found["speaker"].astype(np.int64))
