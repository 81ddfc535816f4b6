"""What an evaluation costs a device: ``python -m examples.reproduce.selfcalibration.cost voice.uvb face.uvb``.

Five stored samples, features already made, are embedded under the candidate and under the released model, as a device
does, and reported. One thread; processor time. ``tests/benchmarks/partial`` measures a training round the same way.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from examples.reproduce.selfcalibration import domains
from uvsdk import modality
from uvsdk.bundle import Bundle
from uvsdk.bundle.inference import embed
from uvsdk.modality import Capture
from uvsdk.records.codec import pack
from uvsdk.release.report import EvaluationReport, EvaluationTask, check, report_on

SAMPLES, REPEATS = 5, 7
_DOMAINS = {"voice": "read speech", "face": "laboratory photographs"}


def main() -> None:
    """Print bytes and seconds for each bundle."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", type=Path, nargs="+", help="of uvsdk export")
    for path in parser.parse_args().bundles:
        _measured(Bundle.open(path))


def _measured(bundle: Bundle) -> None:
    reader = modality.get(bundle.manifest.modality)
    items = domains.DOMAINS[_DOMAINS[bundle.manifest.modality]]()
    samples = [next(items)[2] for _ in range(SAMPLES)]
    features = [embed(sample, bundle, capture=Capture(quality="off", faces="largest")).features for sample in samples]
    cells = sum(len(division.bounds) + 1 for division in reader.cells)
    nobody = np.zeros((0, bundle.manifest.dimension), np.float32)
    spent: dict[str, list[float]] = {"embed": [], "report": [], "check": []}
    task = EvaluationTask(1, "candidate", "released", "moments", True, nobody, nobody)
    sent = b""
    for _ in range(REPEATS):
        start = time.process_time()
        rows = [
            np.stack([bundle.embedding(reader.views(item, bundle.manifest.preprocessing)) for item in features])
            for _ in ("candidate", "released")
        ]
        spent["embed"].append(time.process_time() - start)
        start = time.process_time()
        candidate, released = (
            report_on(each, model_version=name, impostors="moments", evaluates=True, strangers=nobody, cells=cells)
            for each, name in zip(rows, ("candidate", "released"), strict=True)
        )
        report = EvaluationReport(1, candidate, (released,), SAMPLES)
        sent = pack(report)
        spent["report"].append(time.process_time() - start)
        start = time.process_time()
        check(report, task, dimension=bundle.manifest.dimension, cells=cells)
        spent["check"].append(time.process_time() - start)
    middle = {name: float(np.median(values)) for name, values in spent.items()}
    print(
        f"{bundle.manifest.backbone}, d = {bundle.manifest.dimension}: two models embed for {middle['embed']:.3f} s, "
        f"report for {middle['report']:.3f} s, report sent {len(sent):,} bytes, task {len(pack(task)):,} bytes, model "
        f"{bundle.theta.nbytes:,} bytes of parameters; the server checks it in {middle['check']:.3f} s"
    )


if __name__ == "__main__":
    main()
