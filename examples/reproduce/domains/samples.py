"""The samples of the domain shifts, embedded once and kept outside the repository (they are personal data)."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import soundfile
from PIL import Image

from examples.reproduce import data
from examples.reproduce.calibration import make_card
from uvsdk.arrays import Array, Float32
from uvsdk.bundle import Bundle
from uvsdk.bundle.inference import embed
from uvsdk.errors import SampleError
from uvsdk.evaluation.observations import ORIGINAL, Observations, observe
from uvsdk.evaluation.protocols import Person
from uvsdk.modality import Capture, Sample, get
from uvsdk.modality.voice.degradation import Recording, mix, worse_recording
from uvsdk.modality.voice.frames import CapturedVoice
from uvsdk.scoring.conditions import Conditions, conditions_of

SAMPLES_A_PERSON = 30
"""Of the sets in which one person gave hundreds."""

_DIGITS_JOINED, _WORDS_JOINED = 5, 3
_TELEPHONE = Recording(rate=8_000, snr_db=5.0, noise="pink")
_SHORT = Recording(speech_s=1.5)
_OFF = Capture(quality="off")
_Named = Iterator[tuple[str, Sample]]


def load(name: str, bundle: Bundle, *, seed: int = 2026) -> Observations:
    """The set of that name, one of :data:`SETS` of the bundle's modality; embedded at the first call."""
    kept = data.cache() / f"domains-{bundle.version[:16]}-{name}.npz"
    if not kept.exists():
        found = SETS[name](bundle, seed)
        values = [[row.get(kind.name, np.nan) for kind in found.kinds] for row in found.conditions]
        np.savez(
            kept,
            embeddings=found.embeddings,
            person=found.person,
            recording=found.recording,
            copy=found.copy,
            conditions=np.array(values),
            copies=np.array(found.copies),
        )
    with np.load(kept) as archive:
        read = dict(archive.items())
    kinds = get(bundle.manifest.modality).conditions
    conditions: tuple[Conditions, ...] = tuple(
        {kind.name: float(value) for kind, value in zip(kinds, row, strict=True) if np.isfinite(value)}
        for row in read["conditions"]
    )
    enrolled = np.ones(len(conditions), np.bool_)
    copies = tuple(read["copies"].tolist())
    return Observations(
        read["embeddings"], read["person"], read["recording"], read["copy"], enrolled, conditions, copies, kinds
    )


def librispeech(bundle: Bundle, seed: int) -> Observations:
    """Read English, 261 people, with the copies of ``uvsdk calibrate``."""
    return observe(_at_most(make_card.voices(), 10), bundle, seed=seed)[0]


def _reworked(recording: Recording | None) -> Callable[[Bundle, int], Observations]:
    def make(bundle: Bundle, seed: int) -> Observations:
        rng = np.random.default_rng(seed)

        people = _at_most(make_card.voices(), 10)

        def samples() -> _Named:
            for person in people:
                for path in person.enrol:
                    heard = embed(path, bundle, capture=_OFF).captured
                    assert isinstance(heard, CapturedVoice)
                    if recording is None:
                        brown = np.cumsum(rng.standard_normal(len(heard.recorded)))
                        yield person.name, (mix(heard.recorded, brown, 5.0), heard.rate)
                    else:
                        yield person.name, worse_recording(heard.recorded, heard.rate, recording, rng=rng)

        return _embedded(samples(), bundle, names=[person.name for person in people])

    return make


def letters(bundle: Bundle, seed: int) -> Observations:
    """Single letters and syllables in twenty languages, each taken as a person."""
    root = data.named("UVSDK_KLETTRES", "/usr/share/klettres")
    return _embedded(_drawn(sorted(root.glob("*/*/*.ogg")), lambda path: path.parts[-3], seed), bundle)


def words(bundle: Bundle, seed: int) -> Observations:
    """Three words one after the other, in some twenty languages, one speaker each."""
    root = data.named("UVSDK_KTUBERLING", "/usr/share/ktuberling/sounds")
    files = [path for path in sorted(root.glob("*/*.*")) if "@" not in path.parent.name]

    def samples() -> _Named:
        rng = np.random.default_rng(seed)
        for name in sorted({path.parent.name for path in files}):
            own = [path for path in files if path.parent.name == name and path.suffix in (".wav", ".ogg")]
            order = rng.permutation(len(own))[: _WORDS_JOINED * SAMPLES_A_PERSON].tolist()
            for start in range(0, len(order) - _WORDS_JOINED + 1, _WORDS_JOINED):
                heard = [soundfile.read(own[index], always_2d=True) for index in order[start : start + _WORDS_JOINED]]
                if len({rate for _, rate in heard}) == 1:
                    yield name, (np.concatenate([pcm.mean(axis=1) for pcm, _ in heard]), heard[0][1])

    return _embedded(samples(), bundle)


def digits(bundle: Bundle, seed: int) -> Observations:
    """Five digits one after the other, 8 kHz, six speakers."""
    with np.load(data.folder() / "fsdd_8k.npz") as archive:
        read = dict(archive.items())
    rng = np.random.default_rng(seed)

    def samples() -> _Named:
        for speaker in np.unique(read["speaker"]):
            own = rng.permutation(np.flatnonzero(read["speaker"] == speaker))
            for group in own[: len(own) // _DIGITS_JOINED * _DIGITS_JOINED].reshape(-1, _DIGITS_JOINED):
                parts = [read["pcm"][read["off"][index] : read["off"][index + 1]] for index in group]
                yield str(speaker), (np.concatenate(parts), 8_000)

    return _embedded(samples(), bundle)


def photographs(bundle: Bundle, seed: int) -> Observations:
    """Press photographs of LFW's first fold, with the copies of ``uvsdk calibrate``."""
    with tempfile.TemporaryDirectory() as folder:
        return observe(make_card.faces(Path(folder)), bundle, seed=seed)[0]


def _reprinted(change: Callable[[Image.Image], Image.Image]) -> Callable[[Bundle, int], Observations]:
    def make(bundle: Bundle, seed: int) -> Observations:
        with tempfile.TemporaryDirectory() as folder:
            people = make_card.faces(Path(folder))

            def samples() -> _Named:
                for person in people:
                    for path in person.enrol:
                        yield person.name, np.asarray(change(Image.open(path).convert("RGB")))

            return _embedded(samples(), bundle, names=[person.name for person in people])

    return make


def _grey(photo: Image.Image) -> Image.Image:
    return photo.convert("L").convert("RGB")


def _coarse(photo: Image.Image) -> Image.Image:
    """A face of some 100 pixels from a fifth of them, as from a far camera that enlarges."""
    small = photo.resize((photo.width // 5, photo.height // 5), Image.Resampling.LANCZOS)
    return small.resize(photo.size, Image.Resampling.BICUBIC)


def studio(bundle: Bundle, seed: int) -> Observations:
    """Grey photographs of 40 people in one laboratory (ORL), ten each."""
    with np.load(data.folder() / "orl_faces.npz") as archive:
        images, subjects = archive["images"], archive["subject"]

    def samples() -> _Named:
        for image, subject in zip(images, subjects.tolist(), strict=True):
            # The detector wants some room around a face.
            room: Array = np.pad(image, 30, mode="edge")
            yield str(subject), np.repeat(room[:, :, None], 3, axis=2)

    return _embedded(samples(), bundle)


SETS: dict[str, Callable[[Bundle, int], Observations]] = {
    "librispeech": librispeech,
    "telephone": _reworked(_TELEPHONE),
    "short": _reworked(_SHORT),
    "brown": _reworked(None),
    "letters": letters,
    "words": words,
    "digits": digits,
    "photographs": photographs,
    "grey": _reprinted(_grey),
    "coarse": _reprinted(_coarse),
    "studio": studio,
}
"""Name of a set -> what embeds it."""


def _at_most(people: list[Person], count: int) -> list[Person]:
    return [Person(person.name, person.enrol[:count], person.verify) for person in people]


def _drawn(files: list[Path], owner: Callable[[Path], str], seed: int) -> _Named:
    rng = np.random.default_rng(seed)
    for name in sorted({owner(path) for path in files}):
        own = [path for path in files if owner(path) == name]
        for index in sorted(rng.permutation(len(own))[:SAMPLES_A_PERSON].tolist()):
            yield name, own[index]


def _embedded(samples: _Named, bundle: Bundle, *, names: list[str] | None = None) -> Observations:
    """``names`` in the order by which people are numbered."""
    kinds = get(bundle.manifest.modality).conditions
    rows: list[Float32] = []
    people: list[str] = []
    conditions: list[Conditions] = []
    for name, sample in samples:
        try:
            found = embed(sample, bundle, capture=_OFF)
        except SampleError:
            continue
        rows.append(found.embedding)
        people.append(name)
        conditions.append(conditions_of(found.quality.measured, kinds))
    names = names or sorted(set(people))
    count = len(rows)
    return Observations(
        np.stack(rows),
        np.array([names.index(name) for name in people], np.int64),
        np.arange(count),
        np.zeros(count, np.int64),
        np.ones(count, np.bool_),
        tuple(conditions),
        (ORIGINAL,),
        kinds,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("sets", nargs="+", choices=tuple(SETS))
    arguments = parser.parse_args()
    for chosen in arguments.sets:
        seen = load(chosen, Bundle.open(arguments.bundle))
        print(chosen, seen.people, "people", len(seen.embeddings), "embeddings", flush=True)
