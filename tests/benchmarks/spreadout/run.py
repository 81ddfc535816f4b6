"""A spread-out step among 100,000 classes, against an exact search of the same queries by faiss.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python tests/benchmarks/spreadout/run.py

Writes results.csv beside this file. See README.md.
"""

from __future__ import annotations

import argparse
import csv
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

import faiss
import numpy as np

from uvsdk.arrays import Float64, Int64
from uvsdk.federation.classes import neighbours, spreadout
from uvsdk.federation.classes.neighbours import Lists
from uvsdk.federation.classes.spreadout import Pairs, Spreadout

HERE = Path(__file__).parent
COLUMNS = ("method", "setting", "seed", "metric", "value", "unit")
DATA = ("independent", "clustered")

K = 10
TURN_RADIANS = 0.05
"""How far a participant's own training turns its row in a round: the upper half of what is healthy (SPEC 2.4)."""

OPTIONS = Spreadout(mode="topk_neg_sq", step_size=0.005, neighbours=K)
"""Every pair of neighbours pulls, and rows turn by about 0.04 rad."""

Result = TypeVar("Result")


@dataclass
class Memory:
    """Peak growth of resident memory while inside, bytes."""

    grown: int = 0
    _done: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._start = self._now()
        self._watcher = threading.Thread(target=self._watch)
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._watcher.join()

    def _watch(self) -> None:
        while not self._done.wait(0.005):
            self.grown = max(self.grown, self._now() - self._start)

    @staticmethod
    def _now() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@dataclass
class Timer:
    """Wall and processor seconds of every call, by what was called."""

    wall: dict[str, list[float]] = field(default_factory=dict)
    processor: dict[str, list[float]] = field(default_factory=dict)

    def __call__(self, name: str, work: Callable[[], Result]) -> Result:
        """Do ``work`` and keep the time."""
        wall, processor = time.perf_counter(), time.process_time()
        result = work()
        self.wall.setdefault(name, []).append(time.perf_counter() - wall)
        self.processor.setdefault(name, []).append(time.process_time() - processor)
        return result


@dataclass(frozen=True)
class Size:
    """How large."""

    classes: int
    dimension: int
    participants: int

    @property
    def words(self) -> str:
        """For the table."""
        return f"C={self.classes} d={self.dimension} participants={self.participants} k={K}"


def rows_of(kind: str, size: Size, rng: np.random.Generator) -> Float64:
    """Unit rows, independent and uniform, or a hundred around each of many centres as of people alike."""
    vectors = rng.standard_normal((size.classes, size.dimension))
    if kind == "clustered":
        centres = rng.standard_normal((size.classes // 100, size.dimension))
        vectors += 0.7 * centres[rng.integers(0, len(centres), size.classes)]
    return spreadout.unit_rows(vectors)


def trained(vectors: Float64, participants: Int64, rng: np.random.Generator) -> Float64:
    """Turn the rows of ``participants`` each in a direction of its own, in place."""
    here = vectors[participants]
    noise = rng.standard_normal(here.shape)
    noise -= (noise * here).sum(axis=1, keepdims=True) * here
    vectors[participants] = np.cos(TURN_RADIANS) * here + np.sin(TURN_RADIANS) * spreadout.unit_rows(noise)
    return vectors


def recall(vectors: Float64, anchors: Int64, lists: Lists) -> float:
    """Of the true nearest of ``anchors``, how many their kept lists find: a look that leaves no trace."""
    everyone = np.arange(len(vectors))
    searched = lists.searched.copy()
    searched[anchors] = 0
    # A share of 0 leaves one anchor to search exactly, the first; it is not counted.
    found, _ = neighbours.from_lists(vectors, anchors, K, Lists(lists.members, searched, 1, share=0.0))
    true = neighbours.nearest(vectors, anchors, everyone, K)
    hits = (true.indices[1:, :, None] == found.indices[1:, None, :]).any(axis=2)
    return float(hits.mean())


def measure(kind: str, size: Size, rounds: int, repeats: int, seed: int) -> list[tuple[str, str, float, str]]:
    """(method, metric, value, unit): exact and approximate steps in turn with faiss, after lists have been built."""
    rng = np.random.default_rng(seed)
    vectors = rows_of(kind, size, rng)
    lists = neighbours.empty(size.classes)
    timer, found = Timer(), []
    order = rng.permutation(size.classes)
    cohorts = [np.sort(order[first : first + size.participants]) for first in range(0, size.classes, size.participants)]
    for cohort in cohorts:  # in its first rounds every participant is searched exactly
        vectors = trained(vectors, cohort, rng)
        first = partial(spreadout.step, vectors, OPTIONS, rng, pairs=Pairs(cohort), lists=lists)
        spread = timer("building the lists", first)
        vectors, lists = spread.vectors, spread.lists
    recalls = []
    for number in range(rounds):
        cohort = np.sort(rng.choice(size.classes, size.participants, replace=False))
        vectors = trained(vectors, cohort, rng)
        if number >= rounds - repeats:
            compare(vectors, cohort, lists, timer, rng)
            recalls.append(recall(vectors, rng.permutation(cohort)[:401], lists))
        spread = spreadout.step(vectors, OPTIONS, rng, pairs=Pairs(cohort), lists=lists)
        vectors, lists = spread.vectors, spread.lists
    for name in timer.wall:
        for times, clock in ((timer.wall, "seconds"), (timer.processor, "processor seconds")):
            found.append((name, clock, float(np.median(times[name])), "seconds"))
    searched = float(np.median(timer.processor["faiss search"]))
    for name in [name for name in timer.processor if name.endswith("step") or "step," in name]:
        ratio = float(np.median(np.array(timer.processor[name]) / np.array(timer.processor["faiss search"])))
        found.append((name, "processor time over faiss search", ratio, "ratio"))
    building = sum(timer.processor["building the lists"]) / searched
    found.append(("building the lists", "all rounds", building, "searches"))
    found.append(("approximate step", "recall", float(np.mean(recalls)), "share"))
    found.append(("approximate step", "searched exactly", lists.share, "share"))
    found += memory(vectors, cohort, lists, rng)
    return found


def compare(vectors: Float64, cohort: Int64, lists: Lists, timer: Timer, rng: np.random.Generator) -> None:
    """One after the other, so that all see the same neighbours on the machine; the results are dropped."""
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors.astype(np.float32))
    queries = vectors[cohort].astype(np.float32)
    timer("faiss search", partial(index.search, queries, K + 1))
    step = partial(spreadout.step, vectors, OPTIONS, rng, pairs=Pairs(cohort))
    timer("exact step", step)
    timer("exact step, participants move", partial(step, moved=cohort))
    timer("approximate step", partial(step, lists=lists))
    timer("approximate step, participants move", partial(step, moved=cohort, lists=lists))


def memory(
    vectors: Float64, cohort: Int64, lists: Lists, rng: np.random.Generator
) -> list[tuple[str, str, float, str]]:
    """Peak growth of memory in one call, what it returns included."""
    with Memory() as faiss_memory:
        index = faiss.IndexFlatIP(vectors.shape[1])
        index.add(vectors.astype(np.float32))
        index.search(vectors[cohort].astype(np.float32), K + 1)
    del index
    with Memory() as exact:
        spreadout.step(vectors, OPTIONS, rng, pairs=Pairs(cohort))
    with Memory() as approximate:
        spreadout.step(vectors, OPTIONS, rng, pairs=Pairs(cohort), lists=lists)
    peaks = (("faiss search", faiss_memory), ("exact step", exact), ("approximate step", approximate))
    rows = [(name, "peak memory growth", peak.grown / 1e6, "MB") for name, peak in peaks]
    return [*rows, ("class matrix", "float64", vectors.nbytes / 1e6, "MB")]


def long_run(kind: str, size: Size, rounds: int, seed: int) -> list[tuple[str, str, float, str]]:
    """Recall over many rounds, lists ageing and being renewed: the least, the mean, and what is searched exactly."""
    rng = np.random.default_rng(seed)
    vectors = rows_of(kind, size, rng)
    lists = neighbours.empty(size.classes)
    recalls, shares = [], []
    for number in range(rounds):
        cohort = np.sort(rng.choice(size.classes, size.participants, replace=False))
        vectors = trained(vectors, cohort, rng)
        if number >= rounds // 3 and number % 10 == 0:
            recalls.append(recall(vectors, rng.permutation(cohort)[:201], lists))
            shares.append(lists.share)
        spread = spreadout.step(vectors, OPTIONS, rng, pairs=Pairs(cohort), lists=lists)
        vectors, lists = spread.vectors, spread.lists
    name = f"approximate step, {rounds} rounds"
    return [
        (name, "least recall", min(recalls), "share"),
        (name, "mean recall", float(np.mean(recalls)), "share"),
        (name, "searched exactly", float(np.mean(shares)), "share"),
    ]


def write(setting: str, seed: int, rows: list[tuple[str, str, float, str]]) -> None:
    """Print, and put into results.csv in the place of earlier rows of the same setting."""
    path = HERE / "results.csv"
    kept: list[list[str]] = []
    if path.exists():
        with path.open(newline="") as file:
            kept = [line for line in csv.reader(file) if line[:1] != ["method"] and line[1] != setting]
    with path.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        table.writerows(kept)
        for method, metric, value, unit in rows:
            table.writerow((method, setting, seed, metric, f"{value:.3g}", unit))
            print(f"{method:40} {metric:36} {value:8.3g} {unit}", flush=True)


def main() -> None:
    """Measure, print and write results.csv."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", choices=DATA, help="only these rows")
    parser.add_argument("--part", choices=("step", "long"), help="only this part")
    parser.add_argument("--classes", type=int, default=100_000)
    parser.add_argument("--dimension", type=int, default=512)
    parser.add_argument("--participants", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=6, help="after the lists have been built")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--long-rounds", type=int, default=300)
    chosen = parser.parse_args()
    threads = os.environ.get("OMP_NUM_THREADS")
    if threads is None or os.environ.get("OPENBLAS_NUM_THREADS") != threads:
        raise SystemExit("set OMP_NUM_THREADS and OPENBLAS_NUM_THREADS to the same number of threads, e.g. 1")
    faiss.omp_set_num_threads(int(threads))
    size = Size(chosen.classes, chosen.dimension, chosen.participants)
    smaller = Size(chosen.classes // 5, chosen.dimension, chosen.participants // 5)
    for kind in DATA if chosen.data is None else (chosen.data,):
        if chosen.part != "long":
            rows = measure(kind, size, chosen.rounds, chosen.repeats, seed=0)
            write(f"{kind}, {size.words}, {threads} thread", 0, rows)
        if chosen.part != "step":
            rows = long_run(kind, smaller, chosen.long_rounds, seed=0)
            write(f"{kind}, {smaller.words}, {threads} thread", 0, rows)


if __name__ == "__main__":
    main()
