"""One probe against everybody: ``Gallery.search`` beside bare faiss, one thread, the same vectors in the same process.

The vectors are random, in 128 dimensions, as spread out as embeddings of different people ever are, which is the hard
case for every approximate index. Times are of the processor (``time.process_time``); the two take turns probe by probe,
so that whatever else runs on the machine slows both. See README.md for the command and what the columns mean.
"""

from __future__ import annotations

import argparse
import csv
import os
import resource
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before numpy is loaded

import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of SWIG's types
    import faiss

from uvsdk.arrays import Float32
from uvsdk.templates.gallery import Gallery
from uvsdk.templates.template import Template

DIMENSION, TOP, SEED = 128, 5, 0
Row = tuple[str, str, int, str, float, str]


def main() -> None:
    """Measure every size and write results.csv beside this file, or to ``--output``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--people", type=int, nargs="+", default=[1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--probes", type=int, default=200)
    parser.add_argument("--hnsw-up-to", type=int, default=100_000, help="build the approximate index up to this size")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("results.csv"))
    arguments = parser.parse_args()
    faiss.omp_set_num_threads(1)
    rows: list[Row] = []
    for people in arguments.people:
        rows += _measure(people, arguments.probes, hnsw=people <= arguments.hnsw_up_to)
    with arguments.output.open("w", newline="", encoding="utf-8") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(("method", "setting", "seed", "metric", "value", "unit"))
        writer.writerows((*row[:4], f"{row[4]:.4g}", row[5]) for row in rows)
    for row in rows:
        print(f"{row[0]:<22} {row[1]:<16} {row[3]:<28} {row[4]:>10.4g} {row[5]}")


def _measure(people: int, probes: int, *, hnsw: bool) -> list[Row]:
    rng = np.random.default_rng(SEED)
    vectors, queries = _unit(rng, people), _unit(rng, probes)
    setting = f"{people} people"
    started = time.process_time()
    gallery = Gallery({str(place): Template(row, "m", "face", 1) for place, row in enumerate(vectors)})
    filled_s = time.process_time() - started
    flat = faiss.IndexFlatIP(DIMENSION)
    flat.add(vectors)
    ours: list[list[int]] = []
    theirs: list[list[int]] = []
    times = _in_turns(
        queries,
        {
            "gallery": lambda probe: ours.append([int(c.user_id) for c in gallery.search(probe, TOP).candidates]),
            "faiss IndexFlatIP": lambda probe: theirs.append(flat.search(probe[None], TOP)[1][0].tolist()),
        },
    )
    found: list[Row] = [
        (name, setting, SEED, "one search, processor", 1e3 * float(np.median(values)), "ms")
        for name, values in times.items()
    ]
    ratio = float(np.median(np.array(times["gallery"]) / np.array(times["faiss IndexFlatIP"])))
    # The warm-up probe was searched twice.
    same = sum(a == b for a, b in zip(ours[1:], theirs[1:], strict=True)) / probes
    found += [
        ("gallery", setting, SEED, "over faiss IndexFlatIP", ratio, "ratio"),
        ("gallery", setting, SEED, "same top 5 as faiss", same, "share"),
        ("gallery", setting, SEED, "filling, one person", 1e6 * filled_s / people, "us"),
        ("gallery", setting, SEED, "one person in and out", 1e6 * _churn(gallery, vectors[0]), "us"),
        (
            "process",
            setting,
            SEED,
            "peak memory so far",
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "MiB",
        ),
    ]
    if hnsw:
        found += _approximate(vectors, queries, [row[:1] for row in ours[1:]], setting)
    return found


def _approximate(vectors: Float32, queries: Float32, exact: Sequence[Sequence[int]], setting: str) -> list[Row]:
    """What faiss' graph index would buy: why the gallery offers none."""
    index = faiss.IndexHNSWFlat(DIMENSION, 32, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction, index.hnsw.efSearch = 200, 128
    started = time.process_time()
    index.add(vectors)
    built_s = time.process_time() - started
    answers: list[int] = []
    times = _in_turns(queries, {"hnsw": lambda probe: answers.append(int(index.search(probe[None], 1)[1][0, 0]))})
    recall = float(np.mean([answer == best[0] for answer, best in zip(answers[1:], exact, strict=True)]))
    return [
        ("faiss HNSW32", setting, SEED, "building, processor", built_s, "s"),
        ("faiss HNSW32", setting, SEED, "one search, processor", 1e3 * float(np.median(times["hnsw"])), "ms"),
        ("faiss HNSW32", setting, SEED, "best person found", recall, "share"),
    ]


def _in_turns(queries: Float32, searches: dict[str, Callable[[Float32], None]]) -> dict[str, list[float]]:
    for search in searches.values():
        search(queries[0])
    times: dict[str, list[float]] = {name: [] for name in searches}
    for place, probe in enumerate(queries):
        # Who goes second finds the probe in the cache, so they swap.
        for name, search in sorted(searches.items(), reverse=bool(place % 2)):
            started = time.process_time()
            search(probe)
            times[name].append(time.process_time() - started)
    return times


def _churn(gallery: Gallery, vector: Float32, repeats: int = 200) -> float:
    template = Template(vector, "m", "face", 1)
    started = time.process_time()
    for _ in range(repeats):
        gallery.add("visitor", template)
        gallery.remove("visitor")
    return (time.process_time() - started) / repeats


def _unit(rng: np.random.Generator, count: int) -> Float32:
    rows = rng.standard_normal((count, DIMENSION), dtype=np.float32)
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)


if __name__ == "__main__":
    main()
