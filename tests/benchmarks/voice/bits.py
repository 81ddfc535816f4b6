"""What 8 bits change in error rates: the difference of two bundles' equal error rates on the same recordings.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.voice.bits fp32.uvb int8.uvb --data FOLDER

Every recording as it is, its middle 3, 2 and 1 s, over a telephone (8 kHz, mu-law), and with white noise at 5 dB; all
pairs of one condition. Both bundles take the same frames. See README.md.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import soundfile

from tests.benchmarks.voice.measure_ranges import telephone
from tests.benchmarks.voice.run import HERE, Recording, read_manifest
from uvsdk.arrays import Float32, Float64
from uvsdk.bundle import Bundle
from uvsdk.bundle.bundle import direction
from uvsdk.bundle.manifest import Manifest
from uvsdk.errors import SampleError
from uvsdk.evaluation import metrics
from uvsdk.modality import Capture
from uvsdk.modality.voice import audio, frames
from uvsdk.system.execution import onnxruntime

CONDITIONS = ("1 s", "2 s", "3 s", "whole", "telephone", "noise 5 dB")
DRAWS = 400
SEED = 0
LEAST_S = 0.1
"""Of speech that is enough: a middle second has less than what a bundle asks for."""


@dataclass(frozen=True, slots=True)
class _Lenient:
    """A bundle that takes less speech."""

    bundle: Bundle
    manifest: Manifest

    def session(self, name: str = "embedding") -> onnxruntime.InferenceSession:
        return self.bundle.session(name)


def main() -> None:
    """Print, and write bits.csv beside this file, or to ``--output``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", type=Path, nargs=2, help="the exact one, then the one in 8 bits")
    parser.add_argument("--data", type=Path, default=HERE.parents[4] / "shared" / "data")
    parser.add_argument("--conditions", nargs="+", default=CONDITIONS, choices=CONDITIONS)
    parser.add_argument("--output", type=Path, default=HERE.with_name("bits.csv"))
    arguments = parser.parse_args()
    pair = [Bundle.open(path) for path in arguments.bundles]
    recordings = read_manifest(arguments.data / "speech_librispeech")
    rows = []
    for condition in arguments.conditions:
        people, embeddings = _embedded(pair, recordings, condition)
        found = _compared(people, *embeddings)
        rows += [(condition, name, f"{value:.3f}") for name, value in {"recordings": len(people), **found}.items()]
        print(condition, len(people), {name: round(value, 3) for name, value in found.items()}, flush=True)
    with arguments.output.open("w", newline="", encoding="utf-8") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(("condition", "metric", "value"))
        writer.writerows(rows)


def _embedded(
    pair: Sequence[Bundle], recordings: Sequence[Recording], condition: str
) -> tuple[list[str], list[Float32]]:
    """Who speaks, and each bundle's embeddings, float32 (n, d), of the recordings in which there is speech."""
    manifest = pair[0].manifest
    lenient = _Lenient(
        pair[0], replace(manifest, preprocessing={**manifest.preprocessing, "minimum_speech_s": LEAST_S})
    )
    rng = np.random.default_rng(SEED)
    people: list[str] = []
    rows: list[list[Float32]] = [[], []]
    for item in recordings:
        pcm, rate = soundfile.read(item.path, dtype="float32")
        sample = _worse(np.asarray(pcm, np.float32), rate, condition, rng)
        try:
            features = frames.prepare(sample, lenient, capture=Capture(quality="off")).features
        except SampleError:
            continue
        people.append(item.speaker)
        for place, bundle in enumerate(pair):
            rows[place].append(direction(bundle.embed(frames.views(features, manifest.preprocessing))))
    return people, [np.stack(part) for part in rows]


def _worse(pcm: Float32, rate: int, condition: str, rng: np.random.Generator) -> tuple[Float32, int]:
    if condition == "telephone":
        return telephone(audio.resample(pcm, rate, rate // 2)), rate // 2
    if condition == "noise 5 dB":
        level = np.sqrt(np.mean(np.square(pcm))) * 10 ** (-5 / 20)
        return (pcm + level * rng.normal(size=len(pcm))).astype(np.float32), rate
    if condition == "whole":
        return pcm, rate
    count = int(float(condition.split()[0]) * rate)
    start = max(0, (len(pcm) - count) // 2)
    return pcm[start : start + count], rate


def _compared(people: Sequence[str], exact: Float32, quantised: Float32) -> Mapping[str, float]:
    """Equal error rates in %, their difference and its 95 % interval over draws of people, and the mean cosine."""
    names, person = np.unique(people, return_inverse=True)
    first, second = np.triu_indices(len(people), 1)
    same = person[first] == person[second]
    scores = [(rows @ rows.T)[first, second].astype(np.float64) for rows in (exact, quantised)]
    rates = [_rate(part, same) for part in scores]
    rng, differences = np.random.default_rng(SEED), []
    for _ in range(DRAWS):
        drawn = np.bincount(rng.integers(len(names), size=len(names)), minlength=len(names))
        weight = drawn[person[first]] * np.where(same, 1, drawn[person[second]])
        chosen = np.repeat(np.arange(len(weight)), weight)
        differences.append(_rate(scores[1][chosen], same[chosen]) - _rate(scores[0][chosen], same[chosen]))
    low, high = np.quantile(differences, (0.025, 0.975))
    return {
        "EER, exact": rates[0],
        "EER, 8 bits": rates[1],
        "difference": rates[1] - rates[0],
        "difference, low": float(low),
        "difference, high": float(high),
        "mean cosine": float((exact * quantised).sum(axis=1).mean()),
    }


def _rate(scores: Float64, same: np.ndarray) -> float:
    return 100 * metrics.eer(metrics.curve(scores[same], scores[~same]))


if __name__ == "__main__":
    main()
