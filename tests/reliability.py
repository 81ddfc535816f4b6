"""What the reliability tests and benchmark measure: memory over many verifications, results that must not differ."""

from __future__ import annotations

import contextlib
import csv
import os
import tarfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import soundfile

from tests.builders import page, sound_file
from uvsdk import modality
from uvsdk.arrays import Float32
from uvsdk.bundle import Bundle
from uvsdk.bundle.inference import embed
from uvsdk.errors import SampleError
from uvsdk.scoring import Threshold
from uvsdk.system.execution import onnxruntime
from uvsdk.templates.template import Template
from uvsdk.verify import verify

THRESHOLD = Threshold(0.5, 0.01, 1000)
Point = tuple[int, float]
"""Verifications done so far, resident memory in MB (10^6 bytes)."""


class Threaded(Bundle):
    """A bundle whose graphs run on four threads each, where :class:`Bundle` uses one."""

    def session(self, name: str = "embedding", threads: int = 4) -> onnxruntime.InferenceSession:
        return super().session(name, threads)


def resident_mb() -> float:
    """Resident memory of this process; Linux."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def template_of(bundle: Bundle, sample: bytes) -> Template:
    """A template of one sample."""
    return Template(embed(sample, bundle).embedding, bundle.version, bundle.manifest.modality, 1, THRESHOLD)


def soak(bundle: Bundle, samples: Sequence[bytes], count: int, every: int) -> list[Point]:
    """Verify ``count`` times, the samples in turn, and read the resident memory after each ``every``."""
    template = template_of(bundle, samples[0])
    points = []
    for number in range(1, count + 1):
        verify(samples[number % len(samples)], template, model=bundle, threshold=THRESHOLD)
        if number % every == 0:
            points.append((number, resident_mb()))
    return points


def growth_mb(points: Sequence[Point], warm_up: int) -> float:
    """MB per 1,000 verifications by least squares over the points after ``warm_up`` verifications.

    >>> growth_mb([(1000, 50.0), (2000, 100.0), (3000, 101.0), (4000, 102.0)], warm_up=1000)
    1.0
    """
    after = np.array([point for point in points if point[0] > warm_up])
    slope, _ = np.polyfit(after[:, 0], after[:, 1], 1)
    return round(float(slope) * 1000, 6)


def crossed(bundle: Bundle, samples: Sequence[bytes], *, threads: int, rounds: int) -> int:
    """How many embeddings differ in any bit from the single-threaded ones when threads embed different samples."""
    expected = [embed(sample, bundle).embedding.tobytes() for sample in samples]
    started = threading.Barrier(threads)

    def work(me: int) -> int:
        started.wait()
        places = [(me + step) % len(samples) for step in range(rounds)]
        return sum(embed(samples[place], bundle).embedding.tobytes() != expected[place] for place in places)

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(work, range(threads)))


def differing(bundle: Bundle, samples: Sequence[bytes]) -> int:
    """How many embeddings differ in any bit when onnxruntime computes on four threads in place of one."""
    four = Threaded.from_bytes(bundle.to_bytes())
    return sum(not np.array_equal(embed(item, bundle).embedding, embed(item, four).embedding) for item in samples)


def batch_difference(bundle: Bundle, samples: Sequence[bytes]) -> float:
    """Largest difference of a component between samples embedded together and one by one."""
    views = [views_of(bundle, sample) for sample in samples]
    together = bundle.embeddings(views)
    alone = np.stack([bundle.embedding(item) for item in views])
    return float(np.abs(together - alone).max())


def distinct(bundle: Bundle, samples: Sequence[bytes], repeats: int) -> int:
    """How many different scores one pair gives when it is compared again and again."""
    template = template_of(bundle, samples[0])
    scores = {verify(samples[-1], template, model=bundle, threshold=THRESHOLD).score for _ in range(repeats)}
    return len(scores)


def views_of(bundle: Bundle, sample: bytes) -> Float32:
    reader = modality.get(bundle.manifest.modality)
    return reader.views(reader.prepare(sample, bundle).features, bundle.manifest.preprocessing)


def digit_pages(count: int) -> list[bytes]:
    """Pages of scikit-learn's digits as PNG."""
    from sklearn.datasets import load_digits

    return [page(image) for image in load_digits().images[:count]]


def recordings(folder: Path, count: int, seconds: tuple[float, float] = (2.0, 6.0)) -> list[bytes]:
    """The first recordings of LibriSpeech speakers in turn, as FLAC, cut to lengths spread evenly over ``seconds``."""
    with (folder / "manifest.csv").open(newline="", encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if float(row["seconds"]) >= seconds[1]]
    found = []
    for row, length_s in zip(rows[:: max(1, len(rows) // count)], np.linspace(*seconds, count), strict=False):
        pcm, rate = soundfile.read(folder / row["path"], dtype="int16")
        found.append(sound_file(pcm[: int(length_s * rate)], rate, "FLAC"))
    return found


def photographs(archive: Path, bundle: Bundle, count: int) -> list[bytes]:
    """The first photographs of LFW in which one face is found, bytes unchanged."""
    found: list[bytes] = []
    for data in _pictures(archive):
        with contextlib.suppress(SampleError):
            embed(data, bundle)
            found.append(data)
        if len(found) == count:
            break
    return found


def _pictures(archive: Path) -> Iterator[bytes]:
    """The bytes of every JPEG, in the archive's order."""
    with tarfile.open(archive) as members:
        for member in members:
            content = members.extractfile(member)
            if content is not None and member.name.endswith(".jpg"):
                yield content.read()
