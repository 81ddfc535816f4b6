"""How fast updates are summed, and how fast they go from sealed files to the sum.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python tests/benchmarks/aggregation/run.py

Writes results.csv beside this file. See README.md.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from uvsdk.arrays import Float32
from uvsdk.federation.aggregation import CHUNK_PARAMETERS, weighted_mean
from uvsdk.federation.guards import DeltaCheck
from uvsdk.privacy.sealing import Binding, new_nonce, seal_parts
from uvsdk_server.aggregation import SealedDelta, map_envelope

SIGNING = Ed25519PrivateKey.from_private_bytes(b"benchmark".ljust(32, b"\0"))
RECIPIENT = X25519PrivateKey.from_private_bytes(b"benchmark".ljust(32, b"\0"))


@dataclass(frozen=True)
class InMemory:
    """A delta that lies in memory."""

    delta: Float32

    def chunks(self) -> Iterator[Float32]:
        """Views of it."""
        for start in range(0, len(self.delta), CHUNK_PARAMETERS):
            yield self.delta[start : start + CHUNK_PARAMETERS]


@dataclass(frozen=True)
class Validated:
    """A sealed file on the server's way to the sum, with the guards that an upload passes on arrival."""

    path: Path
    parameters: int

    def chunks(self) -> Iterator[Float32]:
        """Chunks that have passed the seal and the guards."""
        check = DeltaCheck(self.parameters)

        def checked(chunk: Float32) -> Float32:
            check.add(chunk)
            return chunk

        yield from map(checked, SealedDelta(self.path, RECIPIENT).chunks())
        check.finish()


@dataclass
class Memory:
    """Peak growth of resident memory while inside: private pages, and all pages, mapped files included."""

    anonymous: int = 0
    everything: int = 0
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
        while not self._done.wait(0.002):
            anonymous, everything = self._now()
            self.anonymous = max(self.anonymous, anonymous - self._start[0])
            self.everything = max(self.everything, everything - self._start[1])

    @staticmethod
    def _now() -> tuple[int, int]:
        pairs = [line.split() for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Rss")]
        sizes = {name: int(kib) * 1024 for name, kib, _ in pairs}
        return sizes["RssAnon:"], sum(sizes.values())


def deltas(count: int, parameters: int) -> Iterator[Float32]:
    """Random updates of a plausible size."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        yield 1e-3 * rng.standard_normal(parameters, dtype=np.float32)


def write_sealed(folder: Path, count: int, parameters: int) -> None:
    """Seal ``count`` updates into files, flushed to the disk."""
    for index, delta in enumerate(deltas(count, parameters)):
        binding = Binding("benchmark", "up", "update", "fedaws", 1, "m" * 64, f"device-{index}", "key", new_nonce())
        chunks: list[bytes | memoryview] = [b"head", *(chunk.data for chunk in InMemory(delta).chunks())]
        with (folder / f"{index:04}").open("wb") as file:
            file.writelines(seal_parts(chunks, binding, recipient=RECIPIENT.public_key(), signing_key=SIGNING))
            file.flush()
            os.fsync(file.fileno())


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """Wall and processor seconds of one call."""
    wall, processor = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - processor


def best(work: Callable[[], object], repeats: int) -> tuple[float, float]:
    """The least wall and the least processor seconds over ``repeats`` calls."""
    runs = [seconds(work) for _ in range(repeats)]
    return min(wall for wall, _ in runs), min(processor for _, processor in runs)


def verify_all(paths: list[Path]) -> None:
    """Check the signature of every file."""
    for path in paths:
        with map_envelope(path) as envelope:
            envelope.verify(SIGNING.public_key())


def read_all(paths: list[Path]) -> None:
    """Read every file and do nothing else: what the disk allows."""
    buffer = bytearray(4 << 20)
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def forget(paths: list[Path]) -> None:
    """Drop the files from the page cache, so that the next reader goes to the disk."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def measure(count: int, parameters: int, repeats: int) -> list[tuple[str, str, float, str]]:
    """(method, metric, value, unit) of everything."""
    upload_bytes = 4 * parameters
    total = count * upload_bytes
    rows: list[tuple[str, str, float, str]] = []
    weights = np.full(count, 1 / count)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = [sys.executable, __file__, "--make", name, "--updates", str(count), "--parameters", str(parameters)]
        subprocess.run(made, check=True)
        paths = sorted(folder.iterdir())
        sealed = [Validated(path, parameters) for path in paths]

        def whole_path() -> None:
            weighted_mean(sealed, weights, parameters, together=1)

        with Memory() as memory:
            whole_path()
        for kind, grown in (("private", memory.anonymous), ("with mapped files", memory.everything)):
            rows.append(("open, validate, sum", f"peak memory growth, {kind}", grown / upload_bytes, "models"))
        for state in ("page cache", "disk"):
            runs = []
            for _ in range(repeats if state == "page cache" else 1):
                if state == "disk":
                    forget(paths)
                runs.append(seconds(whole_path))
            rows.append(("open, validate, sum", f"uploads from {state}", total / min(w for w, _ in runs) / 1e9, "GB/s"))
            cpu = total / min(c for _, c in runs) / 1e9
            rows.append(("open, validate, sum", f"uploads from {state}, processor time", cpu, "GB/s"))
        forget(paths)
        rows.append(("disk", "files read and nothing else", total / seconds(lambda: read_all(paths))[0] / 1e9, "GB/s"))
        wall, cpu = best(lambda: verify_all(paths), 1)
        rows.append(("signatures", "uploads", total / wall / 1e9, "GB/s"))
        rows.append(("signatures", "uploads, processor time", total / cpu / 1e9, "GB/s"))

    sources = [InMemory(delta) for delta in deltas(count, parameters)]
    target = np.empty(parameters, np.float32)
    copies, sums = [], []
    for repeat in range(repeats):  # in turn, so that both see the same neighbours on the machine
        source = sources[repeat % count].delta
        copies.append(seconds(lambda source=source: np.copyto(target, source)))  # type: ignore[misc]
        sums.append(seconds(lambda: weighted_mean(sources, weights, parameters)))
    for column, suffix in ((0, ""), (1, ", processor time")):
        copied = 2 * upload_bytes / min(run[column] for run in copies) / 1e9
        summed = total / min(run[column] for run in sums) / 1e9
        rows.append(("numpy copyto", f"read and written{suffix}", copied, "GB/s"))
        rows.append(("sum alone", f"uploads{suffix}", summed, "GB/s"))
        rows.append(("sum alone", f"uploads per copyto{suffix}", summed / copied, "ratio"))
    with Memory() as memory:
        weighted_mean(sources, weights, parameters)
    rows.append(("sum alone", "peak memory growth, private", memory.anonymous / upload_bytes, "models"))
    return rows


def main() -> None:
    """Measure, print and write results.csv."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--parameters", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.make:
        write_sealed(arguments.make, arguments.updates, arguments.parameters)
        return
    threads = os.environ.get("OMP_NUM_THREADS")
    if threads is None or os.environ.get("OPENBLAS_NUM_THREADS") != threads:
        raise SystemExit("set OMP_NUM_THREADS and OPENBLAS_NUM_THREADS to the same number of threads, e.g. 1")
    setting = f"{arguments.updates} x {arguments.parameters} float32, {threads} thread"
    with Path(__file__).with_name("results.csv").open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("method", "setting", "seed", "metric", "value", "unit"))
        for method, metric, value, unit in measure(arguments.updates, arguments.parameters, arguments.repeats):
            table.writerow((method, setting, 0, metric, f"{value:.3g}", unit))
            print(f"{method:24} {metric:44} {value:8.3g} {unit}")


if __name__ == "__main__":
    main()
