"""What taking part in a round costs a device that trains the head, the last block or all of an encoder.

A real encrypted store, the real trainer and the real sealing, without a network: enrolment, the first round, which puts
the samples through the frozen part and keeps what it made of them, and later rounds, which read that. One thread.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from PIL import Image

import uvsdk
from tests.builders import open_store
from uvsdk.arrays import Float32
from uvsdk.bundle import Bundle
from uvsdk.bundle.frozen import FrozenPart, FrozenViews
from uvsdk.federation.algorithms.fedaws.payload import Task
from uvsdk.federation.messages import TrainingConfig, UpdateHead
from uvsdk.modality import Capture, Sample
from uvsdk.privacy.sealing import CHUNK_BYTES, Binding, new_nonce, seal
from uvsdk.records.codec import pack
from uvsdk.training import backbones
from uvsdk.training.export import export_bundle
from uvsdk.training.loop import LocalTrainer
from uvsdk.training.participation import TrainingJob
from uvsdk_device import EncryptedStore
from uvsdk_device.deployment import Deployment
from uvsdk_device.frozen_views import frozen_views

USER, SAMPLES = "benchmark", 5
STEPS, BATCH = 4, 8
CASES = (
    ("ge2e", "head"),
    ("ge2e+64", "head"),
    ("ge2e", "block"),
    ("ge2e", "all"),
    ("faceapi-resnet", "head"),
    ("faceapi-resnet+32", "head"),
    ("faceapi-resnet", "block"),
    ("faceapi-resnet", "all"),
)


@dataclass(frozen=True, slots=True)
class Round:
    """What one round took, in seconds, and what it sends, in bytes."""

    frozen_s: float
    train_s: float
    sealed_bytes: int
    delta_bytes: int


def main() -> None:
    """Measure every case and write results.csv beside this file, or to ``--output``."""
    here = Path(__file__).resolve()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=here.parents[4] / "shared" / "data")
    parser.add_argument("--repeats", type=int, default=5, help="rounds after the first")
    parser.add_argument("--output", type=Path, default=here.with_name("results.csv"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[tuple[str, str, int, str, str, str]] = []
    for backbone, part in CASES:
        samples = _voice(arguments.data) if backbone.startswith("ge2e") else _faces(arguments.data)
        for metric, value, unit in _measure(backbone, part, samples, arguments.repeats):
            rows.append((backbone, part, 0, metric, f"{value:.4g}" if unit != "bytes" else str(int(value)), unit))
            print(f"{backbone:<18} {part:<6} {metric:<24} {rows[-1][4]:>10} {unit}", flush=True)
    with arguments.output.open("w", newline="", encoding="utf-8") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(("method", "setting", "seed", "metric", "value", "unit"))
        writer.writerows(rows)


def _measure(backbone: str, part: str, samples: Sequence[Sample], repeats: int) -> list[tuple[str, float, str]]:
    bundle = export_bundle(backbones.get(backbone, part).load())
    bundle = Bundle.from_bytes(bundle.to_bytes())  # without the session that the export's check has built
    config = TrainingConfig(
        "benchmark", bundle.manifest.modality, backbone, "fedaws", train=part, local_steps=STEPS, batch_size=BATCH
    )
    deployment, trainer = _deployment(config, bundle), LocalTrainer()
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(Path(folder) / "store")
        started = time.process_time()
        uvsdk.enroll(USER, list(samples), model=bundle, store=store, capture=Capture(quality="off"))
        enrol_s = time.process_time() - started
        rounds = [_round(store, deployment, config, bundle, trainer) for _ in range(1 + repeats)]
        kept = sum(path.stat().st_size for path in (store.folder / "users").glob("*/frozen-views.*"))
        found = [
            ("enrol_5", enrol_s, "cpu_seconds"),
            ("first_round", rounds[0].frozen_s + rounds[0].train_s, "cpu_seconds"),
            ("round", float(np.median([item.frozen_s + item.train_s for item in rounds[1:]])), "cpu_seconds"),
            ("update_sealed", float(rounds[0].sealed_bytes), "bytes"),
            ("update_theta", float(rounds[0].delta_bytes), "bytes"),
            ("kept", float(kept), "bytes"),
        ]
        if part != "all":
            without = float(np.median([_without(store, bundle) for _ in range(repeats)]))
            trained = float(np.median([item.train_s for item in rounds[1:]]))
            found.append(("round_without_cache", without + trained, "cpu_seconds"))
    return found


def _round(
    store: EncryptedStore, deployment: Deployment, config: TrainingConfig, bundle: Bundle, trainer: LocalTrainer
) -> Round:
    """What :func:`uvsdk_device.rounds.train` and ``enqueue`` do, without the server."""
    started = time.process_time()
    features = store.features(USER)
    frozen: tuple[FrozenViews, ...] | None = None
    if bundle.manifest.train != "all":
        frozen = frozen_views(store, USER, deployment=deployment, features=features, bundle=bundle)
    frozen_s = time.process_time() - started
    started = time.process_time()
    row = np.random.default_rng(0).standard_normal(bundle.manifest.dimension)
    task = pack(Task(np.asarray(row / np.linalg.norm(row), np.float32)))
    job = TrainingJob(config, bundle.manifest, 1, bundle.theta, features, task, {}, frozen=frozen)
    result = trainer.train(job, np.random.default_rng(0))
    sealed = _sealed(result.delta, result.payload, bundle)
    return Round(frozen_s, time.process_time() - started, len(sealed), result.delta.nbytes)


def _without(store: EncryptedStore, bundle: Bundle) -> float:
    """Seconds in which the samples go through the frozen part again."""
    started = time.process_time()
    part = FrozenPart(bundle)
    for item in store.features(USER):
        part(item)
    return time.process_time() - started


def _sealed(delta: Float32, payload: bytes, bundle: Bundle) -> bytes:
    head = UpdateHead(1, "fedaws", bundle.version, SAMPLES, len(delta), payload)
    binding = Binding(
        deployment="benchmark",
        direction="up",
        message_type="update",
        algorithm="fedaws",
        round_id=1,
        model_version=bundle.version,
        sender="0" * 32,
        recipient_key_id="0" * 32,
        nonce=new_nonce(),
    )
    recipient, signing = X25519PrivateKey.generate().public_key(), Ed25519PrivateKey.generate()
    data = delta.tobytes()
    chunks = [data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES)]
    return seal([pack(head), *chunks], binding, recipient=recipient, signing_key=signing)


def _deployment(config: TrainingConfig, bundle: Bundle) -> Deployment:
    return Deployment(
        name=config.deployment,
        config=config,
        server_key_id="0" * 32,
        server_public_key=X25519PrivateKey.generate().public_key(),
        server_signing_key=Ed25519PrivateKey.generate().public_key(),
        model_version=bundle.version,
        modality=config.modality,
        needs=(),
        edge_only=False,
    )


def _voice(folder: Path) -> list[Sample]:
    """The first 3 s of five utterances of one speaker."""
    with (folder / "speech_librispeech" / "manifest.csv").open(newline="", encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if row["split"].startswith("eval") and float(row["seconds"]) > 3]
    found: list[Sample] = []
    for row in [row for row in rows if row["speaker"] == rows[0]["speaker"]][:SAMPLES]:
        pcm, rate = soundfile.read(folder / "speech_librispeech" / row["path"], dtype="float32")
        found.append((pcm[: 3 * rate], rate))
    return found


def _faces(folder: Path) -> list[Sample]:
    """Five photographs of one person of the AT&T set."""
    with np.load(folder / "orl_faces.npz") as archive:
        images = archive["images"][archive["subject"] == 1][:SAMPLES]
    return [Image.fromarray(image).convert("RGB").resize((276, 336)) for image in images]


if __name__ == "__main__":
    main()
