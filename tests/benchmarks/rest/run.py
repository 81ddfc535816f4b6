"""How many verifications a second the coordination server answers over REST, and how long one takes.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.rest.run [--voice BUNDLE --clip FLAC]

Starts real servers as processes of their own on loopback. Writes results.csv beside this file. See README.md.
"""

from __future__ import annotations

import argparse
import base64
import csv
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np

from tests.builders import page
from tests.integration.harness import CONFIG, KillableServer, SyntheticDevice
from uvsdk.bundle import Bundle, shipped
from uvsdk.bundle.inference import embed
from uvsdk.federation.messages import TrainingConfig

Row = tuple[str, str, int, str, float, str]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--voice", type=Path, help="a voice bundle, e.g. of `uvsdk export ge2e`")
    parser.add_argument("--clip", type=Path, help="a recording of about five seconds")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement")
    arguments = parser.parse_args()
    rows = measure(shipped(), CONFIG, _page(), "digits", arguments.seconds, embeddings=True)
    if arguments.voice and arguments.clip:
        bundle = Bundle.open(arguments.voice)
        config = replace(CONFIG, modality="voice", backbone=bundle.manifest.backbone)
        clip = arguments.clip.read_bytes()
        rows += measure(bundle, config, clip, bundle.manifest.backbone, arguments.seconds, embeddings=False)
    with Path(__file__).with_name("results.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("method", "setting", "seed", "metric", "value", "unit"))
        writer.writerows(rows)
    for row in rows:
        print(*row, sep="  ")
    print(f"load average at the end: {os.getloadavg()[0]:.1f}")


def measure(
    bundle: Bundle, config: TrainingConfig, sample: bytes, method: str, seconds: float, *, embeddings: bool
) -> list[Row]:
    """Requests a second and latency of one server, by one and by eight clients."""
    probe = embed(sample, bundle).embedding
    with tempfile.TemporaryDirectory() as folder:
        # No round opens: nobody trains while verification is measured.
        server = KillableServer(Path(folder), config, bundle, {"start_after_users": 1000, "default_fmr": 0.1})
        server.start()
        try:
            device = SyntheticDevice(server, 0)
            answers = [device.register(server.token("enrol", user=device.user)), device.admit(mean=0.8 * probe)]
            answers.append(device.leave_template(probe))
            assert all(answer.is_success for answer in answers), [answer.text for answer in answers]
            _calibrate(server, bundle)
            # Nobody is told a score, which would be counted; whoever is accepted every time waits for nothing.
            token = server.token("verify", "embeddings")
            text = base64.b64encode(sample).decode()
            bodies: dict[str, dict[str, object]] = {"sample": {"user": device.user, "sample": text}}
            if embeddings:
                values = [float(value) for value in probe]
                bodies["embedding"] = {"user": device.user, "embedding": values, "model_version": bundle.version}
            rows: list[Row] = []
            for what, body in bodies.items():
                for clients in (1, 8):
                    times = _load(server.url, token, body, clients, seconds)
                    setting = f"{what}, {clients} client{'s' if clients > 1 else ''}"
                    rows.append((method, setting, 0, "requests_per_s", round(len(times) / seconds, 1), "1/s"))
                    for percent in (50, 95):
                        value = round(1e3 * float(np.percentile(times, percent)), 2)
                        rows.append((method, setting, 0, f"latency_p{percent}", value, "ms"))
            return rows
        finally:
            server.stop()


def _calibrate(server: KillableServer, bundle: Bundle) -> None:
    scores = np.linspace(-0.5, 0.5, 1000, dtype="<f4")
    target = f"/v1/models/{bundle.version}/calibration"
    answer = server.ask("PUT", target, content=scores.tobytes(), headers={"UVSDK-Source": "evenly spaced scores"})
    assert answer.status_code == 204, answer.text


def _load(url: str, token: str, body: dict[str, object], clients: int, seconds: float) -> list[float]:
    """Seconds of every request that ``clients`` threads got answered in ``seconds``, after half a second of warm-up."""
    times: list[float] = []
    ends_at = time.perf_counter() + 0.5 + seconds

    def client() -> None:
        with httpx.Client(headers={"Authorization": f"Bearer {token}"}, timeout=60) as connection:
            while (start := time.perf_counter()) < ends_at:
                answer = connection.post(f"{url}/v1/verify", json=body)
                assert answer.status_code == 200, answer.text
                if start > ends_at - seconds:
                    times.append(time.perf_counter() - start)

    _together([threading.Thread(target=client) for _ in range(clients)])
    return times


def _together(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _page() -> bytes:
    from sklearn.datasets import load_digits

    return page(load_digits().images[3])


if __name__ == "__main__":
    main()
