"""How long verification takes: CAM++ in 8 bits and in floats, GE2E, and Resemblyzer, at three lengths of speech.

    uvsdk export voice -o int8.uvb
    uvsdk export campplus --train head --set frozen=float32 -o fp32.uvb
    uvsdk export ge2e -o ge2e.uvb
    OMP_NUM_THREADS=1 python -m tests.benchmarks.voice.speed --data FOLDER --peer-python PEER/bin/python \\
        campplus-int8=int8.uvb campplus-fp32=fp32.uvb ge2e=ge2e.uvb

All take turns, one clip each, so that whatever else the machine does meets all of them. Needs no torch. See README.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import soundfile

from tests.benchmarks.voice.resemblyzer_peer import peak_mb
from tests.benchmarks.voice.run import EVALUATION, HERE, Peer, Recording, ours, read_manifest
from uvsdk.bundle import Bundle
from uvsdk.bundle.inference import embed

LENGTHS_S = (3, 5, 10)
CLIPS = 12
PEER = "Resemblyzer"
SEED = 0


def main() -> None:
    """Measure, print, and write speed.csv beside this file, or to ``--output``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", nargs="*", help="NAME=FILE")
    parser.add_argument("--data", type=Path, default=HERE.parents[4] / "shared" / "data")
    parser.add_argument("--peer-python", type=Path, help="the Python of an environment with Resemblyzer")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, default=HERE.with_name("speed.csv"))
    parser.add_argument("--peak", type=Path, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peak:
        print(json.dumps(_peak(*arguments.peak)))
        return
    paths = {name: Path(path) for name, path in (each.split("=", 1) for each in arguments.bundles)}
    peer = Peer(arguments.peer_python) if arguments.peer_python else None
    recordings = read_manifest(arguments.data / "speech_librispeech")
    with tempfile.TemporaryDirectory() as folder:
        rows = list(_rows(paths, peer, recordings, Path(folder), arguments.repeats))
    with arguments.output.open("w", newline="", encoding="utf-8") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(("method", "setting", "metric", "value", "unit"))
        writer.writerows(rows)
    for row in rows:
        print(f"{row[0]:<16} {row[1]:<6} {row[2]:<30} {row[3]:>9} {row[4]}")


def _rows(
    paths: dict[str, Path], peer: Peer | None, recordings: Sequence[Recording], folder: Path, repeats: int
) -> Iterator[tuple[str, str, str, str, str]]:
    bundles = {name: Bundle.open(path) for name, path in paths.items()}
    longest: Path | None = None
    load = os.getloadavg()[0]
    for seconds in LENGTHS_S:
        clips = _clips(recordings, folder, seconds)
        times: dict[str, list[float]] = {}
        for repeat in range(repeats + 1):
            for clip in clips:
                spent = {name: ours(bundle, clip)["total"] for name, bundle in bundles.items()}
                if peer is not None:
                    spent[PEER] = peer.ask(clip)[0]["total"]
                for name, value in spent.items() if repeat else ():
                    times.setdefault(name, []).append(value)
        setting = f"{seconds} s"
        for name, spent_s in times.items():
            yield name, setting, "processor time", f"{1e3 * np.median(spent_s):.2f}", "ms"
            if peer is not None and name != PEER:
                low, middle, high = _ratio(np.array(times[PEER]), np.array(spent_s), len(clips))
                yield name, setting, f"{PEER} takes times as long", f"{middle:.2f}", "median of pairs"
                yield name, setting, f"{PEER} takes times as long, low", f"{low:.2f}", "95 %"
                yield name, setting, f"{PEER} takes times as long, high", f"{high:.2f}", "95 %"
        longest = clips[0]
    assert longest is not None
    for name, path in paths.items():
        yield name, "", "bundle", f"{path.stat().st_size / 1e6:.2f}", "MB"
        command = [sys.executable, "-m", "tests.benchmarks.voice.speed", "--peak", str(path), str(longest)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        yield name, "10 s", "peak resident memory", f"{found:.0f}", "MB"
    if peer is not None:
        yield PEER, "10 s", "peak resident memory", f"{peer.ask(longest)[0]['peak_mb']:.0f}", "MB"
    yield "machine", "", "load before", f"{load:.1f}", "processes"


def _ratio(theirs: np.ndarray, mine: np.ndarray, clips: int) -> tuple[float, float, float]:
    """Median of the pairs' ratios and its 95 % interval, from a bootstrap over clips."""
    ratios = (theirs / mine).reshape(-1, clips)
    drawn = np.random.default_rng(SEED).integers(clips, size=(1000, clips))
    medians = np.median(ratios[:, drawn].transpose(1, 0, 2).reshape(len(drawn), -1), axis=1)
    low, high = np.quantile(medians, (0.025, 0.975))
    return float(low), float(np.median(ratios)), float(high)


def _clips(recordings: Sequence[Recording], folder: Path, seconds: int) -> list[Path]:
    """The first seconds of recordings of the ten speakers that last so long, FLAC."""
    chosen = [item for item in recordings if item.split == EVALUATION and item.seconds >= seconds]
    clips = []
    for item in chosen[:: max(1, len(chosen) // CLIPS)][:CLIPS]:
        pcm, rate = soundfile.read(item.path, dtype="int16")
        clips.append(folder / f"{item.path.stem}-{seconds}.flac")
        soundfile.write(clips[-1], pcm[: seconds * rate], rate)
    return clips


def _peak(bundle: Path, clip: Path) -> float:
    """Megabytes that a process has at most which opens a bundle and embeds a clip, the library included."""
    embed(clip, Bundle.open(bundle))
    return peak_mb()


if __name__ == "__main__":
    main()
