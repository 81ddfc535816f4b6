"""A voice under twenty-four conditions: ``python -m examples.reproduce.conditions.run voice.uvb --name ge2e``.

See README.md. Where a tool is missing its conditions are left out, and why is printed; a condition whose rows are there
is not measured again.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from examples.reproduce import record
from examples.reproduce.conditions import embedded
from examples.reproduce.conditions.codecs import MissingToolError
from examples.reproduce.conditions.conditions import CONDITIONS, MIXED, Clip
from examples.reproduce.conditions.corpora import CORPORA, judged
from examples.reproduce.conditions.embedded import Rows
from examples.reproduce.conditions.guarded import decided
from examples.reproduce.conditions.models import PEER, Bundled, Model, Peer
from uvsdk.arrays import Bool
from uvsdk.errors import LowQualityError
from uvsdk.evaluation import bootstrap, calibrating, metrics
from uvsdk.evaluation.rates import Resampled
from uvsdk.evaluation.trials import Trials
from uvsdk.modality.voice.quality import REQUIREMENTS
from uvsdk.scoring import Calibration, assess

FMR = 0.01
RESAMPLES = 200
SEED = 2026
CLEAN = "clean"
READ = "librispeech"
SIZE = "size"
HERE = Path(__file__).parent
SPOKEN: Final = (
    *(CLEAN, "G.711 mu-law", "GSM", "Opus 6 kbit/s", "Opus 12 kbit/s", "babble 10 dB", "office, 3 m", "playback"),
    *("2 s", "1 s"),
)
"""Conditions of the other languages."""


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help=f"a bundle of uvsdk export, or {PEER}")
    parser.add_argument("--name", help="what to call it in the results (default: the backbone's name)")
    parser.add_argument("--peer-python", type=Path, help=f"of an environment with {PEER}")
    parser.add_argument("--corpus", choices=tuple(CORPORA), default=READ)
    parser.add_argument("--only", nargs="+", choices=(*CONDITIONS, *MIXED), help="these conditions instead of all")
    parser.add_argument("--output", type=Path, help="default: results.csv, or languages.csv of the other languages")
    chosen = parser.parse_args(arguments)
    model: Model = Peer(chosen.peer_python) if chosen.model == PEER else Bundled(Path(chosen.model))
    name = chosen.name or (model.bundle.manifest.backbone if isinstance(model, Bundled) else PEER)
    output = chosen.output or HERE / ("results.csv" if chosen.corpus == READ else "languages.csv")
    everything = CORPORA[chosen.corpus]()
    places = judged(everything) if chosen.corpus == READ else range(len(everything))
    clips = [everything[place] for place in places]
    record.append(output, [record.Row(name, SIZE, SEED, "megabytes", model.megabytes, "MB")])
    limits = _limits(model, read=chosen.corpus == READ)
    clean = embedded.under(CLEAN, everything, model, places)
    every = {READ: (*CONDITIONS, *MIXED), "languages": SPOKEN}.get(chosen.corpus, (CLEAN,))
    for condition in chosen.only or every:
        setting = condition if chosen.corpus == READ else f"{chosen.corpus}, {condition}"
        if record.has(output, name, setting, SEED):
            continue
        try:
            worse = embedded.under(condition, everything, model, places)
        except MissingToolError as error:
            print(f"{condition}: left out, {error}")
            continue
        cells = [*_acquired(worse), *_measured(clips, clean, worse, limits)]
        record.append(output, [record.Row(name, setting, SEED, *cell) for cell in cells])
        shown = ", ".join(f"{metric} {value:.3g}" for metric, value, _ in cells if not metric.endswith(("low", "high")))
        print(f"{name}, {setting}: {shown}", flush=True)


Cell = tuple[str, float, str]
"""Metric, value, unit."""


class _Comparison:
    """Every recording as a template against every other as a probe; both under one condition: each pair once."""

    def __init__(self, clips: Sequence[Clip], template: Rows, probe: Rows) -> None:
        people = sorted({clip.speaker for clip in clips})
        owner = np.array([people.index(clip.speaker) for clip in clips], np.int64)
        usable = np.isfinite(template.embeddings[:, 0]), np.isfinite(probe.embeddings[:, 0])
        wanted = np.outer(*usable)
        if template is probe:
            wanted = np.triu(wanted, 1)
        first, second = (place.astype(np.int64) for place in np.nonzero(wanted & ~np.eye(len(clips), dtype=bool)))
        scores = np.einsum("nd,nd->n", template.embeddings[first].astype(np.float64), probe.embeddings[second])
        self.trials = Trials(scores, owner[first], owner[second], tuple(people))
        self.sides = template, probe
        self.pairs = first, second
        self.drawn = Resampled(self.trials, resamples=RESAMPLES, seed=SEED)

    def among(self, people: frozenset[int]) -> Bool:
        """Trials between these people alone."""
        members = np.array(sorted(people), np.int64)
        inside: Bool = np.isin(self.trials.template_subject, members) & np.isin(self.trials.probe_subject, members)
        return inside

    def rates(self, accepted: Bool, judged: Bool, name: str) -> Iterator[Cell]:
        """Both rates of the trials that are judged, with their intervals over people."""
        own = self.trials.is_genuine
        sides: Mapping[str, tuple[Bool, Bool]] = {
            "fmr": (accepted, judged & ~own),
            "fnmr": (~accepted, judged & own),
        }
        for metric, (wrong, counted) in sides.items():
            rate = self.drawn.tally(wrong, [np.where(counted, 0, -1).astype(np.int64)], 1).rate(0)
            assert rate is not None
            yield f"{metric}_{name}", 100 * rate.value, "percent"
            yield f"{metric}_{name}_low", 100 * rate.low, "percent"
            yield f"{metric}_{name}_high", 100 * rate.high, "percent"


@dataclass(frozen=True, slots=True, eq=False)
class _Limit:
    """What decides on trials between some people, of none of whom it was set.

    Args:
        name: what follows the metric's name in the results.
        people: whose trials it decides, by their place in the sorted names; all where it is empty.
        cosine: what a cosine must exceed; where there is no calibration.
        calibration: whose likelihood ratio decides.
    """

    name: str
    people: frozenset[int] = frozenset()
    cosine: float = 0.0
    calibration: Calibration | None = None


def _limits(model: Model, *, read: bool) -> list[_Limit]:
    """Of a bundle with a calibration its own. Else for read English one for each half of the judged people, set by
    everybody who is not of that half, and for another corpus one from all of read English.
    """
    clips = CORPORA[READ]()
    if isinstance(model, Bundled) and model.bundle.calibration is not None:
        return [_Limit("_released", calibration=model.bundle.calibration)]
    people = sorted({clip.speaker for clip in clips})
    everybody = frozenset(people)
    chosen = [clips[place].speaker for place in judged(clips)]
    names = sorted(set(chosen))
    halves = _halves(chosen) if read else (frozenset[int](),)
    found = []
    for half in halves:
        others = everybody - {names[place] for place in half}
        if isinstance(model, Bundled):
            clean = embedded.under(CLEAN, clips, model)
            seen = embedded.observations(clips, clean, embedded.copies(clips, model), people)
            of = [place for place, name in enumerate(people) if name in others]
            fitted = calibrating.fit(seen.of(of), model_version=model.bundle.version, source="people of LibriSpeech")
            found.append(_Limit("", half, calibration=fitted.calibration))
        else:
            part = [clips[place] for place in judged(clips)]
            clean = embedded.under(CLEAN, clips, model, judged(clips))
            comparison = _Comparison(part, clean, clean)
            left = frozenset(place for place, name in enumerate(names) if name in others)
            found.append(_Limit("", half, _cosine(comparison, left)))
    return found


def _cosine(comparison: _Comparison, people: frozenset[int]) -> float:
    """What one in a hundred impostor trials between these people exceeds."""
    chosen = comparison.among(people) & ~comparison.trials.is_genuine
    return float(np.quantile(comparison.trials.scores[chosen], 1 - FMR, method="higher"))


def _halves(speakers: Sequence[str]) -> tuple[frozenset[int], frozenset[int]]:
    """Two halves of the people at random, by their place in the sorted names; those with several recordings evenly."""
    people = sorted(set(speakers))
    rng = np.random.default_rng(SEED)
    several = np.array([speakers.count(person) > 1 for person in people])
    order = [rng.permutation(np.flatnonzero(chosen)) for chosen in (several, ~several)]
    first = frozenset(np.concatenate([part[::2] for part in order]).tolist())
    return first, frozenset(range(len(people))) - first


def _acquired(rows: Rows) -> Iterator[Cell]:
    """Recordings that gave nothing, and those that the quality policy ``standard`` refuses besides."""
    usable = np.flatnonzero(np.isfinite(rows.embeddings[:, 0])).tolist()
    refused = 0
    for index in usable:
        measured = {name: value for name, value in rows.qualities(index).items() if not math.isnan(value)}
        try:
            assess(measured, REQUIREMENTS, policy="standard")
        except LowQualityError:
            refused += 1
    yield "recordings", len(rows.embeddings), "count"
    yield "gave_nothing", len(rows.embeddings) - len(usable), "count"
    yield "refused_by_standard", refused, "count"


def _measured(clips: Sequence[Clip], clean: Rows, worse: Rows, limits: Sequence[_Limit]) -> Iterator[Cell]:
    """Everything about one condition."""
    for kind, template in (("both", worse), ("probe", clean)):
        comparison = _Comparison(clips, template, worse)
        found = bootstrap.intervals(comparison.trials, {"eer": metrics.eer}, resamples=RESAMPLES, seed=SEED)["eer"]
        yield f"eer_{kind}", 100 * found.value, "percent"
        yield f"eer_{kind}_low", 100 * found.low, "percent"
        yield f"eer_{kind}_high", 100 * found.high, "percent"
        yield from _matched(comparison, kind, _halves([clip.speaker for clip in clips]))
        for name in dict.fromkeys(limit.name for limit in limits):
            yield from _decided(comparison, kind, [limit for limit in limits if limit.name == name])


def _matched(comparison: _Comparison, kind: str, halves: Sequence[frozenset[int]]) -> Iterator[Cell]:
    """Both rates at the cosine that gives FMR 1 % under this very condition among the other half."""
    trials = comparison.trials
    accepted, judged = np.zeros(len(trials.scores), np.bool_), np.zeros(len(trials.scores), np.bool_)
    for half, others in (halves, halves[::-1]):
        chosen = comparison.among(half)
        accepted[chosen] = trials.scores[chosen] > _cosine(comparison, others)
        judged |= chosen
    yield from comparison.rates(accepted, judged, f"{kind}_matched")


def _decided(comparison: _Comparison, kind: str, limits: Sequence[_Limit]) -> Iterator[Cell]:
    """Both rates at the thresholds for FMR 1 % of these limits, by the likelihood ratio alone and as ``uvsdk.verify``
    decides, and the share of trials that it takes for foreign to the calibration.
    """
    size = len(comparison.trials.scores)
    judged, outside = np.zeros(size, np.bool_), np.zeros(size, np.bool_)
    plain, guarded = np.zeros(size, np.bool_), np.zeros(size, np.bool_)
    for limit in limits:
        chosen = comparison.among(limit.people) if limit.people else np.ones(size, np.bool_)
        judged |= chosen
        if limit.calibration is None:
            plain[chosen] = comparison.trials.scores[chosen] > limit.cosine
            continue
        first, second = (place[chosen] for place in comparison.pairs)
        made = decided(limit.calibration, *comparison.sides, first, second)
        least = limit.calibration.threshold(FMR, "llr").score
        plain[chosen], guarded[chosen], outside[chosen] = made.ratios >= least, made.guarded >= least, made.outside
    name = f"{kind}{limits[0].name}"
    yield from comparison.rates(plain, judged, name)
    if limits[0].calibration is not None:
        yield from comparison.rates(guarded, judged, f"{name}_guarded")
        yield f"outside_{name}", 100 * float(outside[judged].mean()), "percent"


if __name__ == "__main__":
    main()
