"""Does memory grow over many verifications, do threads cross, do results depend on threads or batches?

    OMP_NUM_THREADS=1 python -m tests.benchmarks.reliability.run --data FOLDER [--output results.csv]

Writes results.csv and memory.png beside this file, or beside ``--output``. See README.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests import reliability
from uvsdk.bundle import Bundle, shipped
from uvsdk.system.execution import onnxruntime

HERE = Path(__file__).resolve()
POINTS = 200
"""Readings of the resident memory in a run."""
WARM_UP = 0.2
"""Part of a run that the slope leaves out: sessions are built, the allocator finds its working size."""
Row = tuple[str, str, int, str, str, str]


@dataclass(frozen=True)
class Setting:
    """One modality: how its bundle is made, and how its samples are read from the data folder."""

    name: str
    bundle: Callable[[], Bundle]
    samples: Callable[[Path, Bundle, int], list[bytes]]


def _ge2e() -> Bundle:
    import torch

    from uvsdk.training import backbones
    from uvsdk.training.export import export_bundle

    torch.set_num_threads(1)
    return export_bundle(backbones.get("ge2e").load(download=True), download=True)


def _sface() -> Bundle:
    from uvsdk.training.graphs.sface import sface_bundle

    return sface_bundle(download=True)


def _recordings(folder: Path, _: Bundle, count: int) -> list[bytes]:
    return reliability.recordings(folder / "speech_librispeech", count)


def _photographs(folder: Path, bundle: Bundle, count: int) -> list[bytes]:
    return reliability.photographs(folder / "lfw_fold1_originals.tar", bundle, count)


SETTINGS = (
    Setting("digits", shipped, lambda _folder, _bundle, count: reliability.digit_pages(count)),
    Setting("voice", _ge2e, _recordings),
    Setting("face", _sface, _photographs),
)


def main() -> None:
    """Measure each modality in a process of its own, so that none inherits another's memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=HERE.parents[4] / "shared" / "data")
    parser.add_argument("--verifications", type=int, default=10_000, help="of each modality (default %(default)s)")
    parser.add_argument("--samples", type=int, default=50, help="different ones in turn (default %(default)s)")
    parser.add_argument("--only", choices=[setting.name for setting in SETTINGS], action="append")
    parser.add_argument("--voice", type=Path, help="a bundle to use in place of an exported ge2e")
    parser.add_argument("--face", type=Path, help="a bundle to use in place of sface")
    parser.add_argument("--output", type=Path, default=HERE.with_name("results.csv"))
    # What a process of its own is told.
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--bundle", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(_measure(arguments)))
        return
    measured = {}
    for setting in SETTINGS:
        if arguments.only is None or setting.name in arguments.only:
            measured[setting.name] = _apart(setting, getattr(arguments, setting.name, None))
            print(setting.name, {key: value for key, value in measured[setting.name].items() if key != "points"})
    rows = [row for name, values in measured.items() for row in _rows(name, values)]
    with arguments.output.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("method", "setting", "seed", "metric", "value", "unit"))
        writer.writerows(rows)
    _plot(measured, arguments.output.with_name("memory.png"))


def _apart(setting: Setting, path: Path | None) -> dict[str, object]:
    """Measure in a process that never loads torch: making a bundle does, and its memory is not verification's."""
    with tempfile.TemporaryDirectory() as folder:
        if path is None:
            path = Path(folder) / "bundle.uvb"
            setting.bundle().save(path)
        command = [sys.executable, "-m", "tests.benchmarks.reliability.run", *sys.argv[1:]]
        command += ["--measure", setting.name, "--bundle", str(path)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    values: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return values


def _measure(arguments: argparse.Namespace) -> dict[str, object]:
    setting = next(item for item in SETTINGS if item.name == arguments.measure)
    bundle = Bundle.open(arguments.bundle)
    samples = setting.samples(arguments.data, bundle, arguments.samples)
    count = arguments.verifications
    points = reliability.soak(bundle, samples, count, max(1, count // POINTS))
    warm_up = int(WARM_UP * count)
    after = [megabytes for number, megabytes in points if number > warm_up]
    few = samples[: min(len(samples), 20)]
    return {
        "points": points,
        "samples": len(samples),
        "growth": reliability.growth_mb(points, warm_up),
        "spread": max(after) - min(after),
        "resident": after[-1],
        "crossed": reliability.crossed(bundle, samples, threads=50, rounds=4),
        "differing": reliability.differing(bundle, few),
        "batch": reliability.batch_difference(bundle, few),
        "distinct": reliability.distinct(bundle, samples, 1000),
    }


def _rows(name: str, values: dict[str, object]) -> list[Row]:
    points = values["points"]
    assert isinstance(points, list)
    settings = (
        (f"{points[-1][0]} verifications of {values['samples']} samples", "growth_after_warm_up", "growth", "MB/1000"),
        (f"{points[-1][0]} verifications of {values['samples']} samples", "spread_after_warm_up", "spread", "MB"),
        (f"{points[-1][0]} verifications of {values['samples']} samples", "resident_at_the_end", "resident", "MB"),
        ("50 threads, 4 samples each", "embeddings_that_differ_from_one_thread", "crossed", "of 200"),
        ("onnxruntime on 4 threads and on 1", "embeddings_that_differ", "differing", "of 20"),
        ("samples together and one by one", "largest_difference", "batch", "of a component"),
        ("one pair 1000 times", "distinct_scores", "distinct", ""),
    )
    return [
        (name, setting, 0, metric, f"{float(str(values[key])):.6g}", unit) for setting, metric, key, unit in settings
    ]


def _plot(measured: dict[str, dict[str, object]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.6))
    highest = 0.0
    for name, values in measured.items():
        points = values["points"]
        assert isinstance(points, list)
        growth = float(str(values["growth"]))
        label = f"{name}: {growth:+.3f} MB per 1,000 after warm-up"
        axes.plot([number for number, _ in points], [megabytes for _, megabytes in points], label=label)
        highest = max(highest, *(megabytes for _, megabytes in points))
    axes.set_xlabel("verifications")
    axes.set_ylabel("resident memory, MB")
    axes.set_ylim(0, 1.15 * highest)
    axes.legend(loc="lower right", fontsize=8)
    axes.set_title(f"onnxruntime {onnxruntime.__version__}, Python {platform.python_version()}", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": ""})
    pyplot.close(figure)


if __name__ == "__main__":
    main()
