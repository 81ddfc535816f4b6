"""One person or two in a recording: ``python -m examples.reproduce.conditions.speakers voice.uvb --name voice``.

Recordings of one person under conditions that could pass for a second one, of two people one after the other and of two
at once, as a bundle judges them. See README.md. With ``--half choose`` it writes nothing and tells where limits would
lie that refuse one recording of one person in a hundred.
"""

from __future__ import annotations

import argparse
import csv
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import soundfile
from scipy.stats import beta

from examples.reproduce import data, record
from examples.reproduce.conditions.codecs import RATE, MissingToolError
from examples.reproduce.conditions.conditions import CONDITIONS, Clip
from uvsdk.arrays import Array, Bool, Float32
from uvsdk.bundle import Bundle
from uvsdk.bundle.inference import embed
from uvsdk.errors import SampleError
from uvsdk.modality import Capture
from uvsdk.modality.voice.degradation import hiss, mix
from uvsdk.modality.voice.frames import Framing
from uvsdk.modality.voice.overlap import OVERLAP

HERE = Path(__file__).parent
SEED = 2026
RESAMPLES = 1_000
LENGTHS_S: Final = (3, 4, 5, 10)
SEVERAL: Final = 10
"""At most so many recordings of 10 s of one person; of the shorter ones there is one of each."""
QUANTILE = 0.99
_LEVEL = 0.05
"""Root mean square of every voice before anything is done to it."""
_OFF = Capture(quality="off")
MEASURED: Final = ("second_speaker", "overlap_s")

NOISE, LINE, ROOM = "pink noise 10 dB", "G.711 mu-law", "office, 3 m"
_DEGRADED: Final = (NOISE, LINE, ROOM)


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """What recordings of one length are made of, float32 (n,) each.

    Args:
        own: of the person.
        again: another recording of the same person; empty where there is none.
        other: of another person.
        rng: of what is drawn.
    """

    own: Float32
    again: Float32
    other: Float32
    rng: np.random.Generator


Make = Callable[[Pair], Float32]
"""A recording; empty where it cannot be made."""


def joined(first: Float32, second: Float32, share: float) -> Float32:
    """So much of the first recording's beginning, then the second from that place on.

    >>> joined(np.array([1, 1, 1, 1], np.float32), np.array([2, 2, 2, 2], np.float32), 0.75).tolist()
    [1.0, 1.0, 1.0, 2.0]
    """
    if len(second) < len(first):
        return np.zeros(0, np.float32)
    place = round(share * len(first))
    return np.concatenate([first[:place], second[place : len(first)]])


def louder_from_half(pcm: Float32, decibels: float = 12.0) -> Float32:
    """As of someone who becomes agitated, in level alone."""
    gain = np.where(np.arange(len(pcm)) < len(pcm) // 2, 1.0, 10 ** (decibels / 20))
    return np.asarray(np.clip(pcm * gain, -1, 1), np.float32)


def paused(pcm: Float32, rng: np.random.Generator) -> Float32:
    """A second of soft noise in the middle."""
    silence = hiss(RATE, "pink", rng)
    silence *= 0.02 * _LEVEL / np.std(silence)
    return np.concatenate([pcm[: len(pcm) // 2], silence.astype(np.float32), pcm[len(pcm) // 2 :]])


def for_a_while(pcm: Float32, other: Float32) -> Float32:
    """The other speaks too from three to six tenths."""
    begin, end = round(0.3 * len(pcm)), round(0.6 * len(pcm))
    both = pcm.copy()
    both[begin:end] += other[begin:end]
    return np.clip(both, -1, 1)


ALONE: Final[Mapping[str, Make]] = {
    "one speaker": lambda pair: pair.own,
    "one, 12 dB louder from half on": lambda pair: louder_from_half(pair.own),
    "one, a second of pause": lambda pair: paused(pair.own, pair.rng),
    "one, two recordings": lambda pair: joined(pair.own, pair.again, 0.5),
}
TWO: Final[Mapping[str, Make]] = {
    "half of one, half of another": lambda pair: joined(pair.own, pair.other, 0.5),
    "four fifths, one fifth": lambda pair: joined(pair.own, pair.other, 0.8),
}
AT_ONCE: Final[Mapping[str, Make]] = {
    "at once, equally loud": lambda pair: mix(pair.own, pair.other.astype(np.float64), 0.0),
    "at once, the other 10 dB softer": lambda pair: mix(pair.own, pair.other.astype(np.float64), 10.0),
    "at once for three tenths": lambda pair: for_a_while(pair.own, pair.other),
}
WORSE: Final = {
    f"{name}, {how}": (name, how) for name in ("one speaker", "half of one, half of another") for how in _DEGRADED
}
"""Kinds that are heard under a condition too."""
ONE: Final = (*ALONE, *(name for name, (kind, _) in WORSE.items() if kind == "one speaker"))
EVERY_ONE: Final = "one speaker, all of these"
KINDS: Final = (*ONE, *TWO, *(name for name in WORSE if name not in ONE), *AT_ONCE)


def half_of(speaker: str) -> str:
    """Limits were chosen on the people of one half; figures are of the other.

    >>> half_of("1034") in ("choose", "figures")
    True
    """
    return ("choose", "figures")[zlib.crc32(b"half" + speaker.encode()) % 2]


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, help="of uvsdk export, with --overlap for people at once")
    parser.add_argument("--name", help="what to call it in the results (default: the backbone's name)")
    parser.add_argument("--half", choices=("figures", "choose"), default="figures")
    parser.add_argument("--kinds", choices=("all", "one"), default="all", help="one: recordings of one person alone")
    parser.add_argument("--people", type=int, default=1_000, help="at most so many of each length")
    parser.add_argument("--lengths", type=int, nargs="+", choices=LENGTHS_S, default=LENGTHS_S, metavar="S")
    parser.add_argument("--output", type=Path, default=HERE / "speakers.csv")
    chosen = parser.parse_args(arguments)
    bundle = Bundle.open(chosen.bundle)
    name = chosen.name or bundle.manifest.backbone
    alone: list[dict[str, float]] = []
    for length in chosen.lengths:
        clips = recordings(length, chosen.half, chosen.people)
        speakers = [clip.speaker for clip in clips]
        of_one: list[dict[str, float]] = []
        for kind, made in {**_made(clips, length, chosen.kinds), EVERY_ONE: []}.items():
            values = [_measured(pcm, bundle) for pcm in made]
            of_one += values if kind in ONE else []
            told = of_one if kind == EVERY_ONE else values
            rows = list(figures(name, length, kind, speakers * (len(told) // len(clips)), told, bundle))
            if chosen.half == "figures":
                record.append(chosen.output, rows)
            print(f"{length} s, {kind}: " + ", ".join(f"{row.metric} {row.value:.3g}" for row in rows), flush=True)
        alone += of_one
    if chosen.half == "choose":
        for key in MEASURED:
            found = [value[key] for value in alone if key in value]
            if found:
                limit = np.quantile(found, QUANTILE)
                print(f"{key}: {QUANTILE:.0%} of {len(found)} recordings of one person below {limit:.3f}")


def recordings(length: int, half: str, people: int) -> list[Clip]:
    """Beginnings of ``length`` seconds, all of one level, of people of one half."""
    root = data.folder() / "speech_librispeech"
    if not (root / "manifest.csv").exists():
        raise data.MissingDataError(f"{root} is absent (examples/reproduce/librispeech/README.md says what it is)")
    with (root / "manifest.csv").open(newline="", encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if half_of(row["speaker"]) == half]
    found: dict[str, list[Clip]] = {}
    # A few recordings of 10 s are some milliseconds shorter.
    for row in (row for row in rows if float(row["seconds"]) > length - 0.1):
        if row["speaker"] not in found and len(found) == people:
            continue
        own = found.setdefault(row["speaker"], [])
        if len(own) < (SEVERAL if length == max(LENGTHS_S) else 1):
            pcm, _ = soundfile.read(root / row["path"], dtype="float32", stop=length * RATE)
            pcm = np.resize(pcm, length * RATE)
            own.append(Clip(row["path"], row["speaker"], pcm * np.float32(_LEVEL / max(float(np.std(pcm)), 1e-9))))
    return [clip for own in found.values() for clip in own]


def _made(clips: Sequence[Clip], length: int, kinds: str) -> dict[str, list[Float32]]:
    """Every kind of recording of every clip, in their order."""
    pairs = list(_pairs(clips, length))
    found = {kind: [make(pair) for pair in pairs] for kind, make in {**ALONE, **TWO, **AT_ONCE}.items()}
    for name, (kind, condition) in WORSE.items():
        try:
            found[name] = CONDITIONS[condition](
                [Clip(clip.name, clip.speaker, pcm) for clip, pcm in zip(clips, found[kind], strict=True)]
            )
        except MissingToolError as error:
            print(f"{name}: left out, {error}")
    return {kind: found[kind] for kind in (ONE if kinds == "one" else KINDS) if kind in found}


def _pairs(clips: Sequence[Clip], length: int) -> Iterator[Pair]:
    for clip in clips:
        rng = np.random.default_rng(zlib.crc32(f"{SEED} {length} {clip.name}".encode()))
        others = [other for other in clips if other.speaker != clip.speaker]
        same = [other for other in clips if other.speaker == clip.speaker and other.name != clip.name]
        again = same[int(rng.integers(len(same)))].pcm if same else np.zeros(0, np.float32)
        yield Pair(clip.pcm, again, others[int(rng.integers(len(others)))].pcm, rng)


def _measured(pcm: Float32, bundle: Bundle) -> dict[str, float]:
    """What is measured of people in a recording; nothing where it cannot be read."""
    if not len(pcm):
        return {}
    try:
        return embed((pcm, RATE), bundle, capture=_OFF).quality.measured
    except SampleError:
        return {}


def figures(
    name: str,
    length: int,
    kind: str,
    speakers: Sequence[str],
    values: Sequence[Mapping[str, float]],
    bundle: Bundle,
) -> Iterator[record.Row]:
    """The share that the default policy refuses, by the model itself and with the check of people at once."""
    setting = f"{length} s, {kind}"
    read = [place for place, value in enumerate(values) if value]
    yield record.Row(name, setting, SEED, "recordings", len(read), "count")
    if not read:
        return
    people = np.array([speakers[place] for place in read])
    yield record.Row(name, setting, SEED, "people", len(set(people.tolist())), "count")
    limits = (Framing.read(bundle.manifest.preprocessing).second_speaker, OVERLAP.standard[1])
    parts, overlap = (
        np.array([values[place].get(key, -1.0) > limit for place in read])
        for key, limit in zip(MEASURED, limits, strict=True)
    )
    judged = {"refused": parts, "refused_with_overlap": parts | overlap}
    for metric, refused in judged.items():
        if metric == "refused" or "overlap" in bundle.graphs:
            low, high = interval(refused, people)
            for ending, value in (("", float(refused.mean())), ("_low", low), ("_high", high)):
                yield record.Row(name, setting, SEED, f"{metric}{ending}", 100 * value, "percent")


def interval(refused: Bool, people: Array) -> tuple[float, float]:
    """95 % for a share, over people: percentile bootstrap; where none or all are refused, the exact bound for so many
    people.

    >>> none = interval(np.zeros(20, bool), np.arange(10).repeat(2))
    >>> [round(end, 3) for end in none]  # 1 - 0.025 ** (1 / 10)
    [0.0, 0.308]
    """
    names, owner = np.unique(people, return_inverse=True)
    count = len(names)
    if refused.all() or not refused.any():
        bound = float(beta.ppf(0.975, 1, count))
        return (0.0, bound) if not refused.any() else (1.0 - bound, 1.0)
    wrong, total = np.bincount(owner, refused, count), np.bincount(owner, minlength=count)
    drawn = np.random.default_rng(SEED).multinomial(count, np.full(count, 1 / count), RESAMPLES)
    shares = (drawn @ wrong) / (drawn @ total)
    low, high = np.quantile(shares, (0.025, 0.975))
    return float(low), float(high)


if __name__ == "__main__":
    main()
