"""Speaker verification on LibriSpeech with a voice bundle: every recording against every other.

``python -m examples.reproduce.librispeech.run`` measures GE2E and writes results.csv; ``--bundle FILE`` another one.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from examples.reproduce import data, record
from uvsdk.bundle import Bundle
from uvsdk.bundle.inference import Embedded
from uvsdk.evaluation import protocols
from uvsdk.evaluation.acquisition import Embedder
from uvsdk.evaluation.groups import GroupLabels
from uvsdk.evaluation.protocols import Person
from uvsdk.evaluation.summary import Summary, summarise
from uvsdk.modality import Capture

HERE = Path(__file__).parent
TEN_SPEAKERS = "eval_test-other"
SEED = 0


@dataclass(frozen=True, slots=True)
class Recording:
    """One file: who speaks, which part of the set it is of, where it lies."""

    speaker: str
    part: str
    path: Path


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, help="a voice bundle to measure in place of GE2E as exported now")
    parser.add_argument("--name", help="what to call it in the results (default: the backbone's name)")
    parser.add_argument("--quality", choices=("strict", "standard", "off"), default="standard")
    parser.add_argument("--output", type=Path, default=HERE / "results.csv")
    chosen = parser.parse_args(arguments)
    bundle = _bundle(chosen.bundle)
    name = chosen.name or bundle.manifest.backbone
    recordings, labels = load()
    embed = _once(protocols.bundle_embedder(bundle, capture=Capture(quality=chosen.quality)))
    ten = [recording for recording in recordings if recording.part == TEN_SPEAKERS]
    started = time.process_time()
    for setting, chosen_recordings, by_sex in (
        (f"ten speakers, all pairs, quality {chosen.quality}", ten, None),
        (f"261 speakers pooled, all pairs, quality {chosen.quality}", recordings, labels),
    ):
        summary = summarise(protocols.all_pairs(people(chosen_recordings), embed), seed=SEED, labels=by_sex)
        _save(chosen.output, name, setting, summary)
    spent = 1e3 * (time.process_time() - started) / len(recordings)
    print(f"{spent:.1f} ms of processor time a recording, bootstrap included")


def load(folder: Path | None = None) -> tuple[list[Recording], GroupLabels]:
    """Every recording of the set, and whether a speaker is listed as F or M."""
    root = (folder or data.folder()) / "speech_librispeech"
    if not (root / "manifest.csv").exists():
        raise data.MissingDataError(f"{root} is absent (examples/reproduce/librispeech/README.md says what it is)")
    with (root / "manifest.csv").open(newline="", encoding="utf-8") as lines:
        found = [Recording(row["speaker"], row["split"], root / row["path"]) for row in csv.DictReader(lines)]
    sexes = {}
    for line in (root / "SPEAKERS.TXT").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith(";"):
            speaker, sex, *_ = (cell.strip() for cell in line.split("|"))
            sexes[speaker] = (sex,)
    return found, GroupLabels(("sex",), sexes)


def people(recordings: Sequence[Recording]) -> list[Person]:
    """The recordings by speaker, whatever part they are of."""
    by_speaker: dict[str, list[Path]] = {}
    for recording in recordings:
        by_speaker.setdefault(recording.speaker, []).append(recording.path)
    return [Person(speaker, (), tuple(sorted(paths))) for speaker, paths in sorted(by_speaker.items())]


def _once(embed: Embedder) -> Callable[[Path], Embedded]:
    """The two settings share recordings: each goes through the model once; what was decoded is not kept."""
    known: dict[Path, Embedded] = {}

    def remembered(path: Path) -> Embedded:
        if path not in known:
            found = embed(path)
            assert isinstance(found, Embedded)
            known[path] = Embedded(found.embedding, found.features[:0], found.quality, found.timings_s)
        return known[path]

    return remembered


def _save(output: Path, name: str, setting: str, summary: Summary) -> None:
    percents: dict[str, float] = {}
    for metric, found in summary.intervals.items():
        if metric == "eer" or metric.startswith("fnmr"):
            percents |= {metric: found.value, f"{metric}_low": found.low, f"{metric}_high": found.high}
    percents["worst_decile_fnmr"] = summary.worst_decile_fnmr
    for attribute in summary.attributes:
        for group in attribute.groups:
            if group.fmr_within is not None:
                of = f"fmr_within_{group.name}"
                rate = group.fmr_within
                percents |= {of: rate.value, f"{of}_low": rate.low, f"{of}_high": rate.high}
    rows = [record.Row(name, setting, SEED, metric, 100 * value, "percent") for metric, value in percents.items()]
    costs = {metric: found.value for metric, found in summary.intervals.items() if metric.startswith("min_dcf")}
    rows += [record.Row(name, setting, SEED, metric, value, "cost") for metric, value in costs.items()]
    counts = {
        "failures_to_acquire": len(summary.outcome.failures),
        "people": summary.people,
        "samples": summary.outcome.samples,
        "genuine_trials": summary.curve.genuine,
        "impostor_trials": summary.curve.impostor,
    }
    rows += [record.Row(name, setting, SEED, metric, value, "count") for metric, value in counts.items()]
    record.append(output, rows)
    print(f"{name}, {setting}: " + ", ".join(f"{row.metric} {row.value:.4g}" for row in rows), flush=True)
    for failure in summary.outcome.failures:
        print(f"  {failure.kind}: {failure.reason}")


def _bundle(path: Path | None) -> Bundle:
    if path is not None:
        return Bundle.open(path)
    import torch

    from uvsdk.training import backbones
    from uvsdk.training.export import export_bundle

    torch.set_num_threads(1)
    return export_bundle(backbones.get("ge2e").load(download=True), download=True)


if __name__ == "__main__":
    main()
