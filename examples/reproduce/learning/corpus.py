"""Whose voices learn, whose evaluate and whose are strangers, and what frozen CAM++ makes of them.

``telephone``, ``codec``, ``far field`` and ``clean``: the 261 people of LibriSpeech, in pieces of 1.6 s. Of a person
with one utterance of 5 s the first two pieces enrol and are trained on and the third is the probe; in the three
shifted domains each piece is sent through two channels of its own (:data:`CHANNELS`). Of the thirteen people with
several utterances, who are never trained on, two utterances enrol and ten others are probes.

``letters``: Debian's ``klettres-data``, twenty people; sixteen letters enrol, at most ten syllables are probes.
``digits``: FSDD, six people, single digits at 8 kHz; ten enrol, twenty are probes.

What the layers before CAM++'s last one make of each clip is computed once and kept outside the repository.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import numpy as np
import soundfile
import soxr
from scipy.signal import butter, fftconvolve, sosfilt

from examples.demo import data as demo
from examples.reproduce import data
from uvsdk import modality
from uvsdk.arrays import Array, Float32
from uvsdk.bundle import Bundle
from uvsdk.bundle.frozen import FrozenPart
from uvsdk.errors import SampleError
from uvsdk.modality import Capture, Sample
from uvsdk.modality.voice.degradation import hiss, mix
from uvsdk.training import backbones
from uvsdk.training.export import export_bundle

_PIECE_S, _DRAWS, _TELEPHONE_HZ = 1.6, 2, 8_000
_UTTERANCES, _PROBES = 2, 10
_LETTERS, _DIGITS, _SPOKEN = 16, 10, 20
STRANGER: Final = "stranger"
_FROZEN = 1024
"""Numbers that the frozen layers give: mean and deviation over time of 512 channels."""


Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Person(Generic[Made]):
    """What was made of the samples that enrol, and of the probes: rows of the frozen layers, float32 (n, 1024), or
    each sample's features.
    """

    enrol: Made
    probes: Made


@dataclass(frozen=True, slots=True)
class Split(Generic[Made]):
    """Who trains, who only evaluates, and who does neither."""

    train: Mapping[str, Person[Made]]
    evaluate: Mapping[str, Person[Made]]
    strangers: Mapping[str, Person[Made]]


def load(domain: str) -> dict[str, Person[Float32]]:
    """What the frozen layers made of everybody of :data:`DOMAINS`."""
    kept = data.cache() / f"learning {domain}.npz"
    if not kept.exists():
        made = _embedded(domain)
        np.savez(kept, **{f"{name}/{part}": getattr(made[name], part) for name in made for part in ("enrol", "probes")})
    with np.load(kept) as archive:
        names = sorted({key.rpartition("/")[0] for key in archive.files})
        return {name: Person(archive[f"{name}/enrol"], archive[f"{name}/probes"]) for name in names}


def prepared(domain: str, model: Bundle) -> dict[str, Person[tuple[Array, ...]]]:
    """Everybody's features, of the samples that ``model`` takes; nothing of it is kept."""
    reader = modality.get("voice")

    def features(samples: Sequence[Sample]) -> tuple[Array, ...]:
        found = []
        for sample in samples:
            try:
                found.append(reader.prepare(sample, model, capture=Capture(quality="off")).features)
            except SampleError:
                continue
        return tuple(found)

    made = {name: Person(features(enrol), features(probes)) for name, enrol, probes in DOMAINS[domain]()}
    return {name: person for name, person in made.items() if len(person.enrol) > 1 and person.probes}


def split(people: Mapping[str, Person[Made]], seed: int, *, trainers: int, evaluators: int) -> Split[Made]:
    """The first ``trainers`` people of the order that ``seed`` draws train, the next ``evaluators`` only evaluate, and
    the others are strangers, with those who never train.
    """
    apart = sorted(name for name in people if name.startswith(STRANGER))
    names = sorted(set(people) - set(apart))
    order = [names[place] for place in np.random.default_rng([9000, seed]).permutation(len(names)).tolist()]

    def of(chosen: Sequence[str]) -> dict[str, Person[Made]]:
        return {name: people[name] for name in sorted(chosen)}

    end = trainers + evaluators
    return Split(of(order[:trainers]), of(order[trainers:end]), of([*order[end:], *apart]))


_Samples = Iterable[tuple[str, Sequence[Sample], Sequence[Sample]]]
"""Names with samples to enrol with and probes."""
_Channel = Callable[[Float32, int, np.random.Generator], tuple[Float32, int]]


def _telephone(pcm: Float32, rate: int, rng: np.random.Generator) -> tuple[Float32, int]:
    """Pink noise 5 to 15 dB below, 300 to 3,400 Hz at 8 kHz, mu-law in 8 bits (G.711)."""
    noisy = mix(pcm, hiss(len(pcm), "pink", rng), rng.uniform(5.0, 15.0))
    return _companded(_band(noisy, rate, 3_400.0), bits=8), _TELEPHONE_HZ


def _codec(pcm: Float32, rate: int, rng: np.random.Generator) -> tuple[Float32, int]:
    """300 Hz to an upper edge of 2.2 to 3.4 kHz at 8 kHz, mu-law in 4 bits: 32 kbit/s."""
    return _companded(_band(pcm, rate, rng.uniform(2_200.0, 3_400.0)), bits=4), _TELEPHONE_HZ


def _far(pcm: Float32, rate: int, rng: np.random.Generator) -> tuple[Float32, int]:
    """A simulated room: a tail of noise that falls by 60 dB in 0.5 to 1 s, 0 to 6 dB louder than the direct sound, and
    pink noise 15 dB below.
    """
    decay_s = rng.uniform(0.5, 1.0)
    count = round(decay_s * rate)
    tail = rng.standard_normal(count) * 10.0 ** (-3.0 * np.arange(count) / count)
    tail *= np.sqrt(10.0 ** (rng.uniform(0.0, 6.0) / 10.0) / np.square(tail).sum())
    heard = fftconvolve(pcm, np.concatenate([[1.0], tail]))[: len(pcm)]
    heard = np.asarray(heard / max(float(np.abs(heard).max()), 1.0), np.float32)
    return mix(heard, hiss(len(pcm), "pink", rng), 15.0), rate


def _band(pcm: Float32, rate: int, upper_hz: float) -> Float32:
    heard = soxr.resample(pcm, rate, _TELEPHONE_HZ, quality="HQ")
    kept = sosfilt(butter(4, [300.0, upper_hz], btype="band", fs=_TELEPHONE_HZ, output="sos"), heard)
    return np.asarray(np.clip(kept, -1.0, 1.0), np.float32)


def _companded(pcm: Float32, *, bits: int) -> Float32:
    """mu-law with mu = 255, rounded to ``bits`` and expanded again."""
    levels = 2 ** (bits - 1) - 1
    coded = np.round(np.sign(pcm) * np.log1p(255.0 * np.abs(pcm)) / np.log(256.0) * levels) / levels
    return np.asarray(np.sign(coded) * np.expm1(np.abs(coded) * np.log(256.0)) / 255.0, np.float32)


CHANNELS: Final[Mapping[str, _Channel]] = {"telephone": _telephone, "codec": _codec, "far field": _far}
"""Domain -> (recording, rate, rng) -> recording, rate."""


def _librispeech(domain: str) -> _Samples:
    folder = data.folder() / "speech_librispeech"
    paths = data.readers()
    several = {speaker for alone, speaker in paths if not alone}

    def pieces(path: str, places: Iterable[int]) -> list[Sample]:
        pcm, rate = soundfile.read(folder / path, dtype="float32")
        length, found = int(_PIECE_S * rate), list[Sample]()
        for place in places:
            piece = pcm[place * length : (place + 1) * length]
            if 2 * len(piece) < length:
                continue
            for draw in range(_DRAWS if domain in CHANNELS else 1):
                rng = np.random.default_rng(zlib.crc32(f"{path} {place} {draw}".encode()))
                found.append(CHANNELS[domain](piece, rate, rng) if domain in CHANNELS else (piece, rate))
        return found

    for (alone, speaker), found in sorted(paths.items()):
        if not alone:
            enrol = [sample for path in found[:_UTTERANCES] for sample in pieces(path, (0,))]
            chosen = found[_UTTERANCES : _UTTERANCES + _PROBES]
            yield f"{STRANGER} {speaker}", enrol, [sample for path in chosen for sample in pieces(path, (0,))[:1]]
        elif speaker not in several:
            yield speaker, pieces(found[0], (0, 1)), pieces(found[0], (2,))


def _letters() -> _Samples:
    spoken = demo.people(None, data.cache() / "klettres")
    if spoken.modality != "voice":
        raise data.MissingDataError("the voices of klettres-data could not be fetched")
    return ((person.name, person.enrol[:_LETTERS], person.verify[:_PROBES]) for person in spoken.people)


def _spoken_digits() -> _Samples:
    with np.load(data.folder() / "fsdd_8k.npz") as archive:
        pcm, offsets, speakers = archive["pcm"], archive["off"], archive["speaker"]
    rng = np.random.default_rng(2026)
    for speaker in np.unique(speakers):
        own = rng.permutation(np.flatnonzero(speakers == speaker))[: _DIGITS + _SPOKEN].tolist()
        samples = [(pcm[offsets[place] : offsets[place + 1]], _TELEPHONE_HZ) for place in own]
        yield str(speaker), samples[:_DIGITS], samples[_DIGITS:]


DOMAINS: Final[Mapping[str, Callable[[], _Samples]]] = {
    "telephone": lambda: _librispeech("telephone"),
    "codec": lambda: _librispeech("codec"),
    "far field": lambda: _librispeech("far field"),
    "clean": lambda: _librispeech("clean"),
    "letters": _letters,
    "digits": _spoken_digits,
}
"""Name -> samples of everybody."""


def bundle() -> Bundle:
    """CAM++ whose last layer is trained; short clips are taken."""
    whole = backbones.get("campplus", "head").load()
    return export_bundle(whole, preprocessing={"minimum_speech_s": 0.2})


def _embedded(domain: str) -> dict[str, Person[Float32]]:
    model = bundle()
    part = FrozenPart(model)

    def rows(samples: Sequence[Array]) -> Float32:
        found = [part(features, crops=0).inference.mean(axis=0) for features in samples]
        return np.array(found, np.float32).reshape(len(found), _FROZEN)

    return {name: Person(rows(person.enrol), rows(person.probes)) for name, person in prepared(domain, model).items()}


if __name__ == "__main__":
    for name in DOMAINS:
        found = load(name)
        print(name, len(found), "people", sum(len(person.enrol) for person in found.values()), "samples", flush=True)
