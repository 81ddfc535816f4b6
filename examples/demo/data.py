"""Whose voices, faces or handwriting the demonstration uses, and which samples enrol and which verify."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from uvsdk.errors import UvsdkError

AUDIO = frozenset({".wav", ".flac", ".ogg", ".mp3", ".oga", ".opus"})
IMAGES = frozenset({".jpg", ".jpeg", ".png", ".pgm", ".bmp", ".webp", ".tif", ".tiff"})

# A language is a person here: one speaker says its letters and its syllables, German apart (sentences.py).
VOICES_PACKAGE = "klettres-data"
MOST_ENROLMENT_SAMPLES = 32
MOST_PROBES = 30


class DemoDataError(UvsdkError):
    """The demonstration has no usable data; the message says what was looked for."""


@dataclass(frozen=True, slots=True)
class Person:
    """One person: samples to enrol with, and other samples to verify with, never the same file in both.

    Args:
        name: of the person.
        enrol: samples.
        verify: samples.
        single: the clips that ``verify`` is joined of, each alone; nothing where it is not joined.
    """

    name: str
    enrol: tuple[Path, ...]
    verify: tuple[Path, ...]
    single: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class People:
    """The people of one demonstration and where they come from."""

    modality: str
    people: tuple[Person, ...]
    source: str
    caveat: str


def people(folder: Path | None, cache: Path) -> People:
    """``folder``'s people, else real voices from a Debian package, else the handwriting scikit-learn ships.

    Raises:
        DemoDataError: the folder holds fewer than four people with at least four samples each.
    """
    if folder is not None:
        return from_folder(folder)
    try:
        voices = _klettres(cache / "voices")
    except (OSError, subprocess.SubprocessError) as error:
        reason = error.stderr.strip().splitlines()[-1:] if isinstance(error, subprocess.CalledProcessError) else [error]
        print(f"no voices: {VOICES_PACKAGE} could not be fetched ({reason}); using handwriting instead")
        return handwriting(cache / "handwriting")
    return voices


def from_folder(folder: Path) -> People:
    """A folder per person of audio or images; inside, all samples, or the folders ``enrol`` and ``verify``.

    Without those two folders the first half of a person's files, by name, enrols and the rest verifies.
    """
    if not folder.is_dir():
        raise DemoDataError(
            f"{folder} is not a folder; name one that holds a folder of recordings or images per person"
        )
    found: list[Person] = []
    kinds: set[str] = set()
    for home in sorted(path for path in folder.iterdir() if path.is_dir()):
        enrol, verify = _samples(home / "enrol"), _samples(home / "verify")
        if not (enrol and verify):
            samples = _samples(home)
            enrol, verify = samples[: len(samples) // 2], samples[len(samples) // 2 :]
        if len(enrol) < 2 or len(verify) < 2:
            continue
        kinds |= {"voice" if path.suffix.lower() in AUDIO else "face" for path in (*enrol, *verify)}
        found.append(Person(home.name, _evenly(enrol, MOST_ENROLMENT_SAMPLES), _evenly(verify, MOST_PROBES)))
    if len(found) < 4:
        raise DemoDataError(f"{folder} has {len(found)} people with at least four samples each; at least 4 are needed")
    if len(kinds) != 1:
        raise DemoDataError(f"{folder} mixes audio and images; a demonstration is of one kind")
    return People(kinds.pop(), tuple(found), f"the folder {folder.name}", "")


def _klettres(cache: Path) -> People:
    """Enrol on letters, verify on syllables; where a language has letters only, on every second letter."""
    root = cache / "usr" / "share" / "klettres"
    if not root.is_dir():
        _unpack_debian_package(VOICES_PACKAGE, cache)
    found: list[Person] = []
    for home in sorted(path for path in root.iterdir() if path.is_dir()):
        letters, syllables = _samples(home / "alpha"), _samples(home / "syllab")
        if len(letters) < 4:
            continue
        enrol, verify = (letters, syllables) if syllables else (letters[::2], letters[1::2])
        found.append(Person(home.name, _evenly(enrol, MOST_ENROLMENT_SAMPLES), _evenly(verify, MOST_PROBES)))
    return People(
        "voice",
        tuple(found),
        f"{VOICES_PACKAGE} (letters and syllables in {len(found)} languages, a language taken as a person)",
        "Speaker, language and microphone coincide in these recordings, so their error rates flatter.",
    )


def _unpack_debian_package(package: str, target: Path) -> None:
    """Download and unpack without installing: no root is needed, and nothing outside ``target`` changes."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise FileNotFoundError("apt-get and dpkg-deb are needed to fetch it")
    with tempfile.TemporaryDirectory() as scratch:
        try:
            _run(["apt-get", "download", package], scratch)
        except subprocess.CalledProcessError:
            # Fresh machines hold no package lists, and only root may write the system's: keep lists of our own.
            state = Path(scratch) / "state"
            (state / "lists" / "partial").mkdir(parents=True)
            own = ["-o", f"Dir::State={state}", "-o", f"Dir::Cache={scratch}/cache", "-o", "Debug::NoLocking=1"]
            own += ["-o", "Dir::State::status=/var/lib/dpkg/status"]
            _run(["apt-get", *own, "update"], scratch)
            _run(["apt-get", *own, "download", package], scratch)
        archive = next(Path(scratch).glob(f"{package}_*.deb"))
        unpacked = Path(scratch) / "unpacked"
        _run(["dpkg-deb", "-x", str(archive), str(unpacked)], scratch)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(target, ignore_errors=True)
        shutil.move(unpacked, target)


def _run(command: Sequence[str], folder: str) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=180)


def handwriting(cache: Path) -> People:
    """scikit-learn's digits as images; the ten digit classes stand for ten writers, half of each enrols."""
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    found: list[Person] = []
    for label in range(10):
        home = cache / f"digit-{label}"
        home.mkdir(parents=True, exist_ok=True)
        paths = []
        for number, ink in enumerate(digits.images[digits.target == label]):
            path = home / f"{number:03}.png"
            if not path.exists():
                Image.fromarray((255 - ink / 16 * 255).astype("uint8")).save(path)
            paths.append(path)
        half = len(paths) // 2
        enrol, verify = _evenly(paths[:half], MOST_ENROLMENT_SAMPLES), _evenly(paths[half:], MOST_PROBES)
        found.append(Person(home.name, enrol, verify))
    return People(
        "handwriting",
        tuple(found),
        "scikit-learn's digits (8x8 pixels), a digit class standing for a writer",
        "A digit class is not a person: this shows the machinery where no voices can be fetched.",
    )


def _samples(folder: Path) -> tuple[Path, ...]:
    if not folder.is_dir():
        return ()
    return tuple(sorted(path for path in folder.iterdir() if path.suffix.lower() in AUDIO | IMAGES))


def _evenly(paths: Sequence[Path], most: int) -> tuple[Path, ...]:
    """At most ``most`` of them, evenly spaced, so that no person outweighs the others."""
    if len(paths) <= most:
        return tuple(paths)
    return tuple(paths[index * len(paths) // most] for index in range(most))
