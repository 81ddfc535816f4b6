"""How many devices a second are simulated, against a plain loop and against Flower; and the memory of 10,000.

    OMP_NUM_THREADS=1 python tests/benchmarks/simulation/run.py --flower-python PATH

Writes results.csv beside this file. See README.md.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from workload import BATCH, DEVICES, RATE, SAMPLES, local_steps, network, row, samples

from uvsdk.federation.messages import TrainingConfig
from uvsdk.simulation import Engine, Simulation, Tensors

STEPS = (1, 3, 5)
MANY = 10_000
Row = tuple[str, str, str, str, str, str]


def simulation(batching: str, steps: int, *, devices: int = DEVICES, count: int = SAMPLES) -> Simulation:
    """A federation with fixed class vectors: what is timed is the devices' work, not a spreadout."""
    config = TrainingConfig(
        "benchmark",
        "tensors",
        "custom",
        "fixed",
        {"initialisation": "random"},
        local_steps=steps,
        batch_size=min(BATCH, count),
        learning_rate=RATE,
        clipping="off",
        seed=0,
    )
    features = {f"{device:05}": samples(device, count) for device in range(devices)}
    return Simulation(config, network(), Tensors(features), Engine(batching=batching))


class Plain:
    """FedAvg as a loop that anyone would write: copy the model, train, add the difference."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._global = network()
        self._local = network()
        self._features = [samples(device) for device in range(DEVICES)]
        self._rows = [row(device) for device in range(DEVICES)]

    def __call__(self) -> None:
        """One round."""
        start = [value.detach().clone() for value in self._global.parameters()]
        total = [torch.zeros_like(value) for value in start]
        for features, own in zip(self._features, self._rows, strict=True):
            with torch.no_grad():
                for value, kept in zip(self._local.parameters(), start, strict=True):
                    value.copy_(kept)
            local_steps(self._local, features, own, self._steps)
            with torch.no_grad():
                for added, value, kept in zip(total, self._local.parameters(), start, strict=True):
                    added.add_(value - kept, alpha=1 / DEVICES)
        with torch.no_grad():
            for value, added in zip(self._global.parameters(), total, strict=True):
                value.add_(added)


def rounds(steps: int) -> dict[str, Callable[[], object]]:
    """Name -> one more round of that contestant."""
    found: dict[str, Callable[[], object]] = {"plain loop": Plain(steps)}
    for batching in ("loop", "stacked", *(("large",) if steps == 1 else ())):
        made = simulation(batching, steps)
        found[f"uvsdk {batching}"] = lambda made=made: made.run(1)
    return found


def in_process(steps: int, repeats: int) -> Iterator[Row]:
    """Devices a second of everything that runs in this process, a round of each in turn."""
    contestants = rounds(steps)
    wall: dict[str, list[float]] = {name: [] for name in contestants}
    processor: dict[str, list[float]] = {name: [] for name in contestants}
    for repeat in range(repeats + 2):
        for name, one_round in contestants.items():
            clock, used = time.perf_counter(), time.process_time()
            one_round()
            if repeat >= 2:
                wall[name].append(time.perf_counter() - clock)
                processor[name].append(time.process_time() - used)
    for name in contestants:
        yield from _rows(name, steps, wall[name], processor[name])


def flower(python: Path, steps: int, repeats: int) -> Iterator[Row]:
    """The same of Flower's simulation, from the third round on."""
    peer = Path(__file__).with_name("flower_peer.py")
    command = [str(python), str(peer), str(steps), str(repeats + 3)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    marks = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"round"')]
    if len(marks) != repeats + 3:
        raise SystemExit(f"flower made {len(marks)} of {repeats + 3} rounds:\n{done.stderr[-3000:]}")
    pairs = list(itertools.pairwise(marks[2:]))
    wall = [after["at"] - before["at"] for before, after in pairs]
    yield from _rows("Flower", steps, wall, [after["processor"] - before["processor"] for before, after in pairs])


def _rows(name: str, steps: int, wall: list[float], processor: list[float]) -> Iterator[Row]:
    setting = f"{steps} local steps"
    for metric, seconds in (("devices per second", wall), ("devices per processor second", processor)):
        yield name, setting, "0", metric, f"{DEVICES / statistics.median(seconds):.1f}", "1/s"
    yield name, setting, "0", "fastest round", f"{1000 * min(wall):.1f}", "ms"


def memory(batching: str, steps: int) -> Iterator[Row]:
    """Peak resident memory of two rounds of 10,000 devices, and the second's time, in a process of its own."""
    command = [sys.executable, __file__, "--many", batching, str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    setting = f"{MANY} devices, {steps} local steps"
    yield f"uvsdk {batching}", setting, "0", "peak resident memory", f"{found['peak_mb']:.0f}", "MB"
    yield f"uvsdk {batching}", setting, "0", "before the first round", f"{found['before_mb']:.0f}", "MB"
    yield f"uvsdk {batching}", setting, "0", "second round", f"{found['seconds']:.1f}", "s"


def _many(batching: str, steps: int) -> None:
    made = simulation(batching, steps, devices=MANY, count=10)
    before = _peak_mb()
    first, second = made.run(2)
    assert first.participants == second.participants == MANY
    print(json.dumps({"peak_mb": _peak_mb(), "before_mb": before, "seconds": second.seconds}))


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Run what was asked for and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--flower-python", type=Path, help="python of an environment with flwr[simulation] and torch")
    parser.add_argument("--repeats", type=int, default=10, help="rounds timed of each (10)")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("results.csv"))
    parser.add_argument("--many", nargs=2, metavar=("BATCHING", "STEPS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.many:
        _many(arguments.many[0], int(arguments.many[1]))
        return
    rows = [("machine", "", "", "load average at the start", f"{os.getloadavg()[0]:.1f}", "")]
    for steps in STEPS:
        rows += in_process(steps, arguments.repeats)
        if arguments.flower_python:
            rows += flower(arguments.flower_python, steps, arguments.repeats)
    rows += memory("stacked", 2)
    rows += memory("large", 1)
    rows.append(("machine", "", "", "load average at the end", f"{os.getloadavg()[0]:.1f}", ""))
    with arguments.output.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("method", "setting", "seed", "metric", "value", "unit"), *rows])
    for item in rows:
        print("  ".join(item))


if __name__ == "__main__":
    main()
