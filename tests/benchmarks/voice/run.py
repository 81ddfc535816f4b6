"""The voice path beside Resemblyzer's: processor time per stage, error rates, what quality refuses, early acceptance.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.voice.run --data FOLDER --peer-python PATH

See README.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from tests.benchmarks.voice.conditions import CONDITIONS
from uvsdk.arrays import Array, Float32
from uvsdk.bundle import Bundle
from uvsdk.bundle.bundle import direction
from uvsdk.bundle.inference import embed
from uvsdk.errors import SampleError
from uvsdk.evaluation import metrics
from uvsdk.modality import Capture, get
from uvsdk.modality.voice.quality import REQUIREMENTS
from uvsdk.scoring import assess
from uvsdk.stream import CHECKS_S

STAGES = ("decode", "detect", "features", "model", "total")
CLIP_S = 5.0
CLIPS = 20
EVALUATION, DEVELOPMENT = "eval_test-other", "multi_chapter"
ENROLMENT = 3
HERE = Path(__file__).resolve()


@dataclass(frozen=True)
class Recording:
    """One file of the set."""

    path: Path
    speaker: str
    split: str
    seconds: float


def main() -> None:
    """Measure, print, and write results.csv beside this file, or to ``--output``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=HERE.parents[4] / "shared" / "data")
    parser.add_argument("--bundle", type=Path, help="a bundle to use in place of an exported ge2e")
    parser.add_argument("--peer-python", type=Path, help="the Python of an environment with Resemblyzer")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--output", type=Path, default=HERE.with_name("results.csv"))
    arguments = parser.parse_args()
    recordings = read_manifest(arguments.data / "speech_librispeech")
    bundle = Bundle.open(arguments.bundle) if arguments.bundle else _exported()
    peer = Peer(arguments.peer_python) if arguments.peer_python else None
    rows: list[tuple[str, str, str, str, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("FLAC", "WAV"):
            rows += _speed(bundle, peer, _clips(recordings, Path(folder), kind), kind, arguments.repeats)
    features, embeddings = _embedded(bundle, recordings)
    rows += _error_rates("uvsdk", embeddings, recordings)
    if peer is not None:
        theirs = np.stack([peer.ask(item.path)[1] for item in recordings])
        rows += _error_rates("Resemblyzer", theirs, recordings)
    rows += _refused(bundle, recordings)
    rows += _early(bundle, features, embeddings, recordings)
    with arguments.output.open("w", newline="", encoding="utf-8") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(("method", "setting", "metric", "value", "unit"))
        writer.writerows(rows)
    for row in rows:
        print(f"{row[0]:<12} {row[1]:<30} {row[2]:<24} {row[3]:>9} {row[4]}")


class Peer:
    """Resemblyzer in a process of its own, asked one file at a time."""

    def __init__(self, python: Path) -> None:
        command = [str(python), str(HERE.with_name("resemblyzer_peer.py"))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, path: Path) -> tuple[dict[str, float], Float32]:
        """Seconds per stage, and the embedding."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(path.resolve(), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline())
        return answer["seconds"], np.array(answer["embedding"], np.float32)


def _speed(
    bundle: Bundle, peer: Peer | None, clips: list[Path], kind: str, repeats: int
) -> Iterator[tuple[str, str, str, str, str]]:
    """Both take turns, a clip each; medians over clips and repetitions, the first of which is not counted."""
    setting = f"{CLIP_S:g} s {kind.lower()}"
    times: dict[str, dict[str, list[float]]] = {}
    for repeat in range(repeats + 1):
        for path in clips:
            spent = {"uvsdk": ours(bundle, path)}
            if peer is not None:
                spent["Resemblyzer"] = peer.ask(path)[0]
            for method, stages in spent.items() if repeat else ():
                for stage, seconds in stages.items():
                    times.setdefault(method, {}).setdefault(stage, []).append(seconds)
    for method, stages in times.items():
        for stage in STAGES:
            clock = "the clock" if method == "uvsdk" and stage != "total" else "processor time"
            yield method, setting, stage, f"{1e3 * np.median(stages[stage]):.2f}", f"ms of {clock}"
    if peer is not None:
        ratios = np.array(times["Resemblyzer"]["total"]) / np.array(times["uvsdk"]["total"])
        yield "uvsdk", setting, "times faster", f"{np.median(ratios):.2f}", "median of pairs"


def ours(bundle: Bundle, path: Path) -> dict[str, float]:
    """Seconds per stage, and of processor time in total."""
    started = time.process_time()
    # Stages are of the clock; on a machine that does other things their sum exceeds the processor time.
    stages = embed(path, bundle).timings_s
    return {**stages, "total": time.process_time() - started}


def _clips(recordings: list[Recording], folder: Path, kind: str) -> list[Path]:
    """The first 5 s of the first recordings of the ten speakers that last so long."""
    chosen = [item for item in recordings if item.split == EVALUATION and item.seconds >= CLIP_S]
    clips = []
    for item in chosen[:: max(1, len(chosen) // CLIPS)][:CLIPS]:
        pcm, rate = soundfile.read(item.path, dtype="int16")
        clips.append(folder / f"{item.path.stem}.{kind.lower()}")
        soundfile.write(clips[-1], pcm[: int(CLIP_S * rate)], rate, format=kind)
    return clips


def _embedded(bundle: Bundle, recordings: list[Recording]) -> tuple[list[Array], Float32]:
    found = [embed(item.path, bundle) for item in recordings]
    return [item.features for item in found], np.stack([item.embedding for item in found])


def _error_rates(
    method: str, embeddings: Float32, recordings: list[Recording]
) -> Iterator[tuple[str, str, str, str, str]]:
    splits = np.array([item.split for item in recordings])
    for setting, chosen in (
        ("ten speakers, all pairs", splits == EVALUATION),
        ("261 speakers, all pairs", splits != ""),
        ("without the ten, all pairs", splits != EVALUATION),
    ):
        speakers = np.array([item.speaker for item in recordings])[chosen]
        first, second = np.triu_indices(len(speakers), 1)
        scores = (embeddings[chosen] @ embeddings[chosen].T)[first, second].astype(np.float64)
        same = speakers[first] == speakers[second]
        points = metrics.curve(scores[same], scores[~same])
        yield method, setting, "equal error rate", f"{100 * metrics.eer(points):.3f}", "%"


def _refused(bundle: Bundle, recordings: list[Recording]) -> Iterator[tuple[str, str, str, str, str]]:
    """Of every fourth recording under each condition, what each policy refuses."""
    rng, voice, off = np.random.default_rng(0), get("voice"), Capture(quality="off")
    for name, worse in CONDITIONS.items():
        refused = {"off": 0, "standard": 0, "strict": 0}
        chosen = recordings[::4]
        for item in chosen:
            pcm, rate = soundfile.read(item.path, dtype="float32")
            try:
                quality = voice.prepare((worse(np.asarray(pcm, np.float32), rng), rate), bundle, capture=off).quality
            except SampleError:
                refused = {policy: count + 1 for policy, count in refused.items()}
                continue
            for policy in ("standard", "strict"):
                try:
                    assess(quality.measured, REQUIREMENTS, policy=policy)
                except SampleError:
                    refused[policy] += 1
        for policy, count in refused.items():
            yield "uvsdk", name, f"refused under {policy}", f"{100 * count / len(chosen):.1f}", "%"


def _early(
    bundle: Bundle, features: list[Array], embeddings: Float32, recordings: list[Recording]
) -> Iterator[tuple[str, str, str, str, str]]:
    """Rates of the ten speakers at the lengths of a stream, one alone and any of them, under one threshold.

    The threshold is that of FMR 1 % at the longest length, from recordings of the other speakers.
    """
    speakers = np.array([item.speaker for item in recordings])
    ten = np.array([item.split == EVALUATION for item in recordings])
    at_length = np.stack([_prefixes(bundle, frames, embeddings[index]) for index, frames in enumerate(features)])
    longest = at_length[:, -1]
    others = (longest[~ten] @ embeddings[~ten].T).astype(np.float64)
    different = speakers[~ten][:, None] != speakers[~ten][None]
    threshold = float(np.quantile(others[different], 0.99))
    people = sorted(set(speakers[ten]))
    genuine: list[np.ndarray] = []
    impostor: list[np.ndarray] = []
    for person in people:
        own = np.flatnonzero(speakers == person)
        template = direction(embeddings[own[:ENROLMENT]])
        genuine += list(at_length[own[ENROLMENT:]] @ template)
        impostor += list(at_length[ten & (speakers != person)] @ template)
    for name, matrix in (("FMR", np.array(impostor)), ("FNMR", np.array(genuine))):
        accepted = matrix >= threshold
        for index, check in enumerate(CHECKS_S):
            yield _rate_row(name, f"at {check:g} s alone", accepted[:, index])
        yield _rate_row(name, f"any of {', '.join(f'{check:g}' for check in CHECKS_S)} s", accepted.any(axis=1))
    first = np.argmax(np.array(genuine) >= threshold, axis=1)[(np.array(genuine) >= threshold).any(axis=1)]
    yield "uvsdk", "early acceptance", "mean speech until accepted", f"{np.mean(np.array(CHECKS_S)[first]):.2f}", "s"


def _rate_row(name: str, setting: str, accepted: np.ndarray) -> tuple[str, str, str, str, str]:
    rate = float(np.mean(accepted)) if name == "FMR" else float(np.mean(~accepted))
    return "uvsdk", f"early acceptance {setting}", name, f"{100 * rate:.2f}", "%"


def _prefixes(bundle: Bundle, frames: Array, whole: Float32) -> Float32:
    """The embedding of the first seconds of speech, one per length; of the whole where it is shorter, (lengths, d)."""
    voice = get("voice")
    counts = [round(100 * check) for check in CHECKS_S]
    return np.stack(
        [
            bundle.embedding(voice.views(frames[:count], bundle.manifest.preprocessing))
            if count < len(frames)
            else whole
            for count in counts
        ]
    )


def read_manifest(folder: Path) -> list[Recording]:
    """Every recording of the set."""
    with (folder / "manifest.csv").open(newline="", encoding="utf-8") as lines:
        return [
            Recording(folder / row["path"], row["speaker"], row["split"], float(row["seconds"]))
            for row in csv.DictReader(lines)
        ]


def _exported() -> Bundle:
    import torch

    from uvsdk.training import backbones
    from uvsdk.training.export import export_bundle

    torch.set_num_threads(1)
    return export_bundle(backbones.get("ge2e").load(download=True), download=True)


if __name__ == "__main__":
    main()
