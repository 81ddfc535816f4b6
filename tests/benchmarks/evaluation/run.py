"""What one evaluation costs a device, beside a round of training: bytes on its sockets and processor seconds.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.evaluation.run MODEL... --people FOLDER

A real server, and for every person a device process that talks to it over HTTP. Eight of them train, the others only
evaluate. Writes results.csv beside this file. See README.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.integration.harness import KillableServer
from uvsdk.bundle import Bundle
from uvsdk.federation.messages import TrainingConfig
from uvsdk.federation.roles import LEAST_TRAINERS
from uvsdk.privacy.identifiers import hash_user_id, new_pepper

SAMPLES = 5
ROUNDS = 4

Row = tuple[str, str, int, str, float, str]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path, help="bundles of one modality")
    parser.add_argument("--people", type=Path, required=True, help="a folder with a folder of samples for each person")
    parser.add_argument("--count", type=int, default=2 * LEAST_TRAINERS, help="people (%(default)s)")
    arguments = parser.parse_args()
    people = {
        folder.name: sorted(path for path in folder.rglob("*") if path.is_file())[:SAMPLES]
        for folder in sorted(arguments.people.iterdir())
        if folder.is_dir()
    }
    chosen = dict(list(people.items())[: arguments.count])
    rows = [row for model in arguments.models for row in measure(model, chosen)]
    with Path(__file__).with_name("results.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("method", "setting", "seed", "metric", "value", "unit"))
        writer.writerows(rows)
    for row in rows:
        print(*row, sep="  ")
    print(f"{platform.processor() or platform.machine()}, load average at the end: {os.getloadavg()[0]:.1f}")


def measure(model: Path, people: Mapping[str, Sequence[Path]]) -> list[Row]:
    """Rounds and evaluations of one model: medians over devices and times, the first round apart."""
    bundle = Bundle.open(model)
    config = TrainingConfig(
        deployment="cost",
        modality=bundle.manifest.modality,
        backbone=bundle.manifest.backbone,
        algorithm="fedaws",
        train=bundle.manifest.train,
        optimiser="adam",
        server_learning_rate=4e-4,
        server_adaptivity=1e-8,
        gradient_clip=10.0,
        rounds=ROUNDS,
        evaluation_share=0.999,
        evaluate_every=2,
        seed=1,
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server = KillableServer(folder / "server", config, bundle, {"start_after_users": len(people)})
        server.start()
        try:
            steps = _run(server, folder, model, people)
        finally:
            server.stop()
    return _rows(bundle.manifest.backbone, bundle.manifest.train, steps)


def _run(
    server: KillableServer, folder: Path, model: Path, people: Mapping[str, Sequence[Path]]
) -> list[dict[str, Any]]:
    pepper = folder / "pepper"
    pepper.write_bytes(new_pepper())
    running = []
    for name, files in people.items():
        user = hash_user_id(name, deployment=server.config.deployment, pepper=pepper.read_bytes())
        command = [sys.executable, "-m", "tests.benchmarks.evaluation.device", "--user", name]
        command += ["--store", str(folder / name), "--server", server.url, "--token", server.token("enrol", user=user)]
        command += ["--pepper-file", str(pepper), "--model", str(model), *map(str, files)]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    steps: list[dict[str, Any]] = []
    for device, name in zip(running, people, strict=True):
        printed, _ = device.communicate(timeout=3600)
        if device.returncode:
            raise SystemExit(f"the device of {name} ended with {device.returncode}")
        own = [json.loads(line) for line in printed.splitlines()]
        role = "trains" if any(step["kind"] == "round" for step in own) else "only evaluates"
        steps += [{**step, "role": role} for step in own]
    late = [step for step in steps if step["state"] != "uploaded"]
    if late:
        raise SystemExit(f"not every step succeeded: {late}")
    return steps


def _rows(backbone: str, train: str, steps: Sequence[Mapping[str, Any]]) -> list[Row]:
    kinds = {
        "the first round": [step for step in steps if step["kind"] == "round" and step["number"] == 1],
        "a later round": [step for step in steps if step["kind"] == "round" and step["number"] > 1],
        "an evaluation, who trains": [
            step for step in steps if step["kind"] == "evaluation" and step["number"] > 1 and step["role"] == "trains"
        ],
        "an evaluation, who only evaluates": [
            step for step in steps if step["kind"] == "evaluation" and step["number"] > 1 and step["role"] != "trains"
        ],
    }
    units = {"sent_bytes": "B", "received_bytes": "B", "processor_s": "s"}
    return [
        (f"{backbone}, {train}", f"{kind}, median of {len(found)}", 1, metric, float(np.median(values)), unit)
        for kind, found in kinds.items()
        for metric, unit in units.items()
        if (values := [step[metric] for step in found])
    ]


if __name__ == "__main__":
    main()
