"""How long one verification and one enrolment take on one thread, and where the time goes.

Voice: the ``ge2e`` bundle on 5 s of LibriSpeech (FLAC). Face: the ``sface`` bundle on 250x250 LFW originals (JPEG).
Samples are bytes in memory; the bundle is open and warm. See README.md for the command.
"""

from __future__ import annotations

import argparse
import csv
import tarfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import soundfile

import uvsdk
from tests.builders import sound_file
from uvsdk.bundle import Bundle
from uvsdk.scoring import Threshold
from uvsdk.templates.storage import MemoryStore

STAGES = ("decode", "detect", "features", "model", "decision")
ENROLMENT_SAMPLES = 5
CLIP_S = 5.0


def main() -> None:
    """Measure both modalities and write results.csv beside this file, or to ``--output``."""
    here = Path(__file__).resolve()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=here.parents[4] / "shared" / "data")
    parser.add_argument("--voice", type=Path, help="a bundle to use in place of an exported ge2e")
    parser.add_argument("--face", type=Path, help="a bundle to use in place of sface")
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--output", type=Path, default=here.with_name("results.csv"))
    arguments = parser.parse_args()
    rows: list[tuple[str, str, int, str, str, str]] = []
    for setting, bundle, samples in (
        ("voice 5 s flac", _bundle(arguments.voice, _ge2e), _voice(arguments.data / "speech_librispeech")),
        ("face 250x250 jpeg", _bundle(arguments.face, _sface), _faces(arguments.data / "lfw_fold1_originals.tar")),
    ):
        rows += _measure(setting, bundle, samples, arguments.repeats)
    with arguments.output.open("w", newline="", encoding="utf-8") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(("method", "setting", "seed", "metric", "value", "unit"))
        writer.writerows(rows)
    for row in rows:
        print(f"{row[0]:<8} {row[1]:<18} {row[3]:<20} {row[4]:>9} {row[5]}")


def _measure(
    setting: str, bundle: Bundle, samples: Sequence[bytes], repeats: int
) -> list[tuple[str, str, int, str, str, str]]:
    method = bundle.manifest.backbone
    *enrolment, probe = samples
    enrolment_s = []
    for _ in range(max(repeats // 10, 3)):
        store = MemoryStore()
        started = time.perf_counter()
        template = uvsdk.enroll("benchmark", enrolment, model=bundle, store=store).template
        enrolment_s.append(time.perf_counter() - started)
    threshold = Threshold(score=0.5, fmr=0.01, trials=0)
    times: dict[str, list[float]] = {stage: [] for stage in (*STAGES, "total")}
    for _ in range(repeats):
        started = time.perf_counter()
        decision = uvsdk.verify(probe, template, model=bundle, threshold=threshold)
        times["total"].append(time.perf_counter() - started)
        for stage in STAGES:
            times[stage].append(decision.timings_s[stage])
    found = [
        (method, setting, 0, f"verify_{stage}_p{percentile}", f"{1e3 * np.percentile(values, percentile):.3f}", "ms")
        for stage, values in times.items()
        for percentile in (50, 95)
    ]
    # The first enrolment builds the sessions; it is the cold start and stands apart.
    found.append((method, setting, 0, "enrol_5_first", f"{1e3 * enrolment_s[0]:.1f}", "ms"))
    found.append((method, setting, 0, "enrol_5_p50", f"{1e3 * np.percentile(enrolment_s[1:], 50):.1f}", "ms"))
    return found


def _bundle(path: Path | None, make: Callable[[], Bundle]) -> Bundle:
    return Bundle.open(path) if path is not None else make()


def _ge2e() -> Bundle:
    import torch

    from uvsdk.training import backbones
    from uvsdk.training.export import export_bundle

    torch.set_num_threads(1)
    return export_bundle(backbones.get("ge2e").load(download=True), download=True)


def _sface() -> Bundle:
    from uvsdk.training.graphs.sface import sface_bundle

    return sface_bundle(download=True)


def _voice(folder: Path) -> list[bytes]:
    """The first 5 s of the first utterances of the first speaker who has enough."""
    by_speaker: dict[str, list[bytes]] = {}
    with (folder / "manifest.csv").open(newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            if float(row["seconds"]) < CLIP_S:
                continue
            pcm, rate = soundfile.read(folder / row["path"], dtype="int16")
            found = by_speaker.setdefault(row["speaker"], [])
            found.append(sound_file(pcm[: int(CLIP_S * rate)], rate, "FLAC"))
            if len(found) == ENROLMENT_SAMPLES + 1:
                return found
    raise SystemExit(f"no speaker of {folder} has {ENROLMENT_SAMPLES + 1} recordings of {CLIP_S:g} s")


def _faces(archive: Path) -> list[bytes]:
    """The first photographs of the first person who has enough, bytes unchanged."""
    by_person: dict[str, list[bytes]] = {}
    with tarfile.open(archive) as members:
        for member in members:
            content = members.extractfile(member)
            if content is None or not member.name.endswith(".jpg"):
                continue
            found = by_person.setdefault(Path(member.name).parent.name, [])
            found.append(content.read())
            if len(found) == ENROLMENT_SAMPLES + 1:
                return found
    raise SystemExit(f"nobody in {archive} has {ENROLMENT_SAMPLES + 1} photographs")


if __name__ == "__main__":
    main()
