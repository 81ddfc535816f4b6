"""A voice under twenty-four conditions: ``python -m examples.reproduce.conditions.run voice.uvb --name ge2e``.

See README.md. Where a tool is missing its conditions are left out, and why is printed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from examples.reproduce import record
from examples.reproduce.conditions import embedded
from examples.reproduce.conditions.codecs import MissingToolError
from examples.reproduce.conditions.conditions import CONDITIONS, Clip
from examples.reproduce.conditions.embedded import Rows
from uvsdk.arrays import Bool, Float64, Int64
from uvsdk.bundle import Bundle
from uvsdk.errors import LowQualityError
from uvsdk.evaluation import bootstrap, calibrating, metrics
from uvsdk.evaluation.calibrated import likelihood_ratios
from uvsdk.evaluation.conditions import Sides
from uvsdk.evaluation.rates import Resampled
from uvsdk.evaluation.trials import Trials
from uvsdk.modality.voice.quality import REQUIREMENTS
from uvsdk.scoring import Calibration, assess

FMR = 0.01
RESAMPLES = 200
SEED = 2026
CLEAN = "clean"
HERE = Path(__file__).parent


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, help="of uvsdk export")
    parser.add_argument("--name", help="what to call it in the results (default: the backbone's name)")
    parser.add_argument("--only", nargs="+", choices=tuple(CONDITIONS), help="these conditions instead of all")
    parser.add_argument("--output", type=Path, default=HERE / "results.csv")
    chosen = parser.parse_args(arguments)
    bundle = Bundle.open(chosen.bundle)
    name = chosen.name or bundle.manifest.backbone
    clips = embedded.clips()
    clean = embedded.under(CLEAN, clips, bundle)
    halves = _halves([clip.speaker for clip in clips])
    calibrations = _calibrations(clips, clean, bundle, halves)
    for condition in chosen.only or CONDITIONS:
        try:
            worse = embedded.under(condition, clips, bundle)
        except MissingToolError as error:
            print(f"{condition}: left out, {error}")
            continue
        rows = [record.Row(name, condition, SEED, *cell) for cell in _acquired(worse)]
        for kind, template in (("both", worse), ("probe", clean)):
            comparison = _Comparison(clips, template, worse)
            rows += [record.Row(name, condition, SEED, *cell) for cell in _errors(comparison, kind)]
            rows += [
                record.Row(name, condition, SEED, *cell) for cell in _decided(comparison, kind, halves, calibrations)
            ]
            if bundle.calibration is not None:
                rows += [
                    record.Row(name, condition, SEED, *cell) for cell in _released(comparison, kind, bundle.calibration)
                ]
        record.append(chosen.output, rows)
        print(f"{name}, {condition}: " + ", ".join(f"{row.metric} {row.value:.3g}" for row in rows), flush=True)


Cell = tuple[str, float, str]
"""Metric, value, unit."""


class _Comparison:
    """Every recording as a template against every other as a probe; both under one condition: each pair once."""

    def __init__(self, clips: Sequence[Clip], template: Rows, probe: Rows) -> None:
        people = sorted({clip.speaker for clip in clips})
        owner = np.array([people.index(clip.speaker) for clip in clips], np.int64)
        usable = np.isfinite(template.embeddings[:, 0]), np.isfinite(probe.embeddings[:, 0])
        wanted = np.outer(*usable)
        first, second = np.nonzero(
            np.triu(wanted, 1) if template is probe else wanted & ~np.eye(len(clips), dtype=bool)
        )
        scores = np.einsum("nd,nd->n", template.embeddings[first].astype(np.float64), probe.embeddings[second])
        self.trials = Trials(scores, owner[first], owner[second], tuple(people))
        self._qualities = [[rows.qualities(index) for index in range(len(clips))] for rows in (template, probe)]
        self._rows = template.embeddings, probe.embeddings
        self._index = first.astype(np.int64), second.astype(np.int64)

    def ratios(self, calibration: Calibration, chosen: Bool) -> Float64:
        """The likelihood ratios of some of the trials, as natural logarithms."""
        template, probe = (
            [{name: value for name, value in item.items() if np.isfinite(value)} for item in side]
            for side in self._qualities
        )
        first, second = self._index
        return likelihood_ratios(
            Sides(template, probe, first[chosen], second[chosen], True, *self._rows),
            calibration,
        )


def _halves(speakers: Sequence[str]) -> tuple[frozenset[int], frozenset[int]]:
    """Two halves of the people at random, by their place in the sorted names; those with several recordings evenly."""
    people = sorted(set(speakers))
    rng = np.random.default_rng(SEED)
    several = np.array([speakers.count(person) > 1 for person in people])
    order = [rng.permutation(np.flatnonzero(chosen)) for chosen in (several, ~several)]
    first = frozenset(np.concatenate([part[::2] for part in order]).tolist())
    return first, frozenset(range(len(people))) - first


def _calibrations(
    clips: Sequence[Clip], clean: Rows, bundle: Bundle, halves: tuple[frozenset[int], frozenset[int]]
) -> tuple[Calibration, Calibration]:
    """What ``uvsdk calibrate`` makes of each half."""
    people = sorted({clip.speaker for clip in clips})
    seen = embedded.observations(clips, clean, embedded.copies(clips, bundle), people)
    first, second = (
        calibrating.fit(seen.of(sorted(half)), model_version=bundle.version, source="half of the people").calibration
        for half in halves
    )
    return first, second


def _acquired(rows: Rows) -> Iterator[Cell]:
    """Recordings that gave nothing, and those that the quality policy ``standard`` refuses besides."""
    usable = np.flatnonzero(np.isfinite(rows.embeddings[:, 0])).tolist()
    refused = 0
    for index in usable:
        try:
            assess(rows.qualities(index), REQUIREMENTS, policy="standard")
        except LowQualityError:
            refused += 1
    yield "recordings", len(rows.embeddings), "count"
    yield "gave_nothing", len(rows.embeddings) - len(usable), "count"
    yield "refused_by_standard", refused, "count"


def _errors(comparison: _Comparison, kind: str) -> Iterator[Cell]:
    """The equal error rate of the cosine, with its interval over people."""
    found = bootstrap.intervals(comparison.trials, {"eer": metrics.eer}, resamples=RESAMPLES, seed=SEED)["eer"]
    yield f"eer_{kind}", 100 * found.value, "percent"
    yield f"eer_{kind}_low", 100 * found.low, "percent"
    yield f"eer_{kind}_high", 100 * found.high, "percent"


def _decided(
    comparison: _Comparison,
    kind: str,
    halves: tuple[frozenset[int], frozenset[int]],
    calibrations: tuple[Calibration, Calibration],
) -> Iterator[Cell]:
    """Both rates at the threshold for FMR 1 % that the other half's calibration sets; trials within each half."""
    trials = comparison.trials
    accepted = np.zeros(len(trials.scores), np.bool_)
    judged = np.zeros(len(trials.scores), np.bool_)
    for half, calibration in zip(halves, calibrations[::-1], strict=True):
        members = np.array(sorted(half), np.int64)
        chosen = np.isin(trials.template_subject, members) & np.isin(trials.probe_subject, members)
        limit = calibration.threshold(FMR, "llr").score
        accepted[chosen] = comparison.ratios(calibration, chosen) >= limit
        judged |= chosen
    yield from _rates(trials, accepted, judged, kind)


def _released(comparison: _Comparison, kind: str, calibration: Calibration) -> Iterator[Cell]:
    """Both rates at the threshold that comes with the bundle."""
    everything = np.ones(len(comparison.trials.scores), np.bool_)
    limit = calibration.threshold(FMR, calibration.scale).score
    values = comparison.trials.scores if calibration.ratio is None else comparison.ratios(calibration, everything)
    yield from _rates(comparison.trials, values >= limit, everything, f"{kind}_released")


def _rates(trials: Trials, accepted: Bool, judged: Bool, kind: str) -> Iterator[Cell]:
    drawn = Resampled(trials, resamples=RESAMPLES, seed=SEED)
    own = trials.is_genuine
    sides: Mapping[str, tuple[Bool, Int64]] = {
        "fmr": (accepted, np.where(judged & ~own, 0, -1)),
        "fnmr": (~accepted, np.where(judged & own, 0, -1)),
    }
    for metric, (wrong, membership) in sides.items():
        rate = drawn.tally(wrong, [membership.astype(np.int64)], 1).rate(0)
        assert rate is not None
        yield f"{metric}_{kind}", 100 * rate.value, "percent"
        yield f"{metric}_{kind}_low", 100 * rate.low, "percent"
        yield f"{metric}_{kind}_high", 100 * rate.high, "percent"


if __name__ == "__main__":
    main()
