"""Error rates of presentation attack detection, in the terms of ISO/IEC 30107-3.

* **bona fide presentation**: a person presents their own face or voice as they should.
* **presentation attack**, made with a presentation attack instrument (a photograph, a mask, a recording). Instruments
  that are made alike are one **species**, and rates of attacks are counted per species: an average over species would
  hide the one that works.
* **APCER** (attack presentation classification error rate): of one species' attacks that got an answer, the share taken
  for bona fide. What counts is the highest over the species, the one an attacker will choose.
* **BPCER** (bona fide presentation classification error rate): of the bona fide presentations that got an answer, the
  share taken for attacks.
* **APNRR, BPNRR**: the share that got no answer at all (no face found, say).
* **BPCER10, BPCER20, BPCER100**: the BPCER where the highest APCER is at most 10, 5 and 1 %.
* **ACER**: the mean of the highest APCER and the BPCER. The standard no longer has it; papers still report it.

As everywhere here a presentation is bona fide iff its score is at or above the threshold. Intervals are exact
(Clopper-Pearson), 95 % unless asked otherwise. A species with no attack found in 100 has an APCER of up to 3.6 %.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from uvsdk.arrays import Float, Float64
from uvsdk.errors import ThresholdError
from uvsdk.scoring import clopper_pearson

"""Name of an operating point -> highest APCER that it allows."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A counted proportion.

    Args:
        events: how many.
        trials: of how many, at least 1.
        interval: lowest and highest rate that the count supports.
    """

    events: int
    trials: int
    interval: tuple[float, float]

    @classmethod
    def of(cls, events: int, trials: int, *, confidence: float = 0.95) -> Rate:
        """With its exact interval.

        >>> rate = Rate.of(0, 100)
        >>> rate.value, round(rate.interval[1], 3)
        (0.0, 0.036)
        """
        if not 0 <= events <= trials or trials < 1:
            raise ValueError(f"{events} of {trials} is no proportion; at least one presentation must be there")
        return cls(events, trials, clopper_pearson(events, trials, confidence=confidence))

    @property
    def value(self) -> float:
        """Events per trial."""
        return self.events / self.trials


@dataclass(frozen=True, slots=True, eq=False)
class Presentations:
    """What a detector said of presentations whose truth is known.

    Args:
        bona_fide: scores, finite, of those that got an answer, at least one.
        attacks: species -> scores of its attacks that got an answer; a species may have none left.
        bona_fide_unanswered: bona fide presentations that got no answer.
        attacks_unanswered: species -> attacks that got none; a species that is not named had none.
    """

    bona_fide: Float
    attacks: Mapping[str, Float] = field(default_factory=dict)
    bona_fide_unanswered: int = 0
    attacks_unanswered: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        named = {"bona fide": self.bona_fide, **self.attacks}
        for name, scores in named.items():
            if not np.isfinite(np.asarray(scores, np.float64)).all():
                raise ValueError(f"a score of {name} is not a finite number; count it as unanswered")
        if not len(self.bona_fide):
            raise ValueError("there is no bona fide presentation with an answer, so nothing is known of the detector")
        if self.bona_fide_unanswered < 0 or any(count < 0 for count in self.attacks_unanswered.values()):
            raise ValueError("presentations without an answer are counted from 0")
        for species in {*self.attacks, *self.attacks_unanswered}:
            if not len(self.attacks.get(species, ())) and not self.attacks_unanswered.get(species, 0):
                raise ValueError(f"the species {species} has no attacks; leave it out")

    @property
    def species(self) -> tuple[str, ...]:
        """Every species, sorted."""
        return tuple(sorted({*self.attacks, *self.attacks_unanswered}))


@dataclass(frozen=True, slots=True)
class PresentationRates:
    """Every rate at one threshold.

    Args:
        threshold: at or above it a presentation is bona fide.
        bpcer: of the bona fide presentations with an answer.
        apcer: species -> of its attacks with an answer; a species without any is left out.
        bpnrr: of all bona fide presentations.
        apnrr: species -> of all its attacks.
    """

    threshold: float
    bpcer: Rate
    apcer: Mapping[str, Rate]
    bpnrr: Rate
    apnrr: Mapping[str, Rate]

    @property
    def worst_species(self) -> str | None:
        """The species that passes most often, of equals the first by name; ``None`` without attacks."""
        return max(sorted(self.apcer), key=lambda species: self.apcer[species].value, default=None)

    @property
    def apcer_max(self) -> Rate | None:
        """The APCER of the worst species; ``None`` where no attack was tried, for then nothing is known."""
        worst = self.worst_species
        return None if worst is None else self.apcer[worst]


def rates(presentations: Presentations, threshold: float, *, confidence: float = 0.95) -> PresentationRates:
    """Every rate at one threshold.

    Args:
        presentations: scores and counts.
        threshold: any number but NaN; the detector's own, set beforehand on other presentations.
        confidence: of the intervals.

    >>> found = rates(Presentations(np.array([0.9, 0.4]), {"print": np.array([0.1, 0.6]), "mask": np.ones(1)}), 0.5)
    >>> found.bpcer.value, found.apcer["print"].value, found.worst_species
    (0.5, 0.5, 'mask')
    """
    if np.isnan(threshold):
        raise ValueError("a threshold that is not a number decides nothing")

    def rate(events: int, trials: int) -> Rate:
        return Rate.of(events, trials, confidence=confidence)

    bona_fide = np.asarray(presentations.bona_fide, np.float64)
    unanswered = {species: presentations.attacks_unanswered.get(species, 0) for species in presentations.species}
    answered = {
        species: np.asarray(presentations.attacks.get(species, ()), np.float64) for species in presentations.species
    }
    return PresentationRates(
        float(threshold),
        rate(int((bona_fide < threshold).sum()), len(bona_fide)),
        {name: rate(int((scores >= threshold).sum()), len(scores)) for name, scores in answered.items() if len(scores)},
        rate(presentations.bona_fide_unanswered, presentations.bona_fide_unanswered + len(bona_fide)),
        {name: rate(unanswered[name], unanswered[name] + len(answered[name])) for name in presentations.species},
    )


def bpcer_at_apcer(presentations: Presentations, limit: float, *, confidence: float = 0.95) -> PresentationRates:
    """The rates at the lowest threshold at which no species has an APCER above ``limit``.

    Args:
        presentations: scores and counts; the threshold is chosen on them, so that it is an optimist's.
        limit: in (0, 1); BPCER10, BPCER20 and BPCER100 have 0.1, 0.05 and 0.01.
        confidence: of the intervals.

    Raises:
        ThresholdError: fewer than 1 / ``limit`` attacks of a species: a single one of them would already be more.

    >>> attacks = {"print": np.arange(10) / 10}  # 0.9 may pass: one of ten
    >>> bpcer_at_apcer(Presentations(np.array([0.85, 0.95]), attacks), 0.1).threshold
    0.85
    """
    if not 0.0 < limit < 1.0:
        raise ThresholdError(f"an APCER lies between 0 and 1, got {limit}")
    groups = {name: np.asarray(scores, np.float64) for name, scores in presentations.attacks.items() if len(scores)}
    if not groups:
        raise ThresholdError("no attack got an answer, so no APCER can be kept; present attacks of every species")
    for species, scores in groups.items():
        if len(scores) * limit < 1.0 - 1e-9:
            raise ThresholdError(
                f"{len(scores)} attacks of {species} cannot show an APCER of {limit:g}, need "
                f"{int(np.ceil(1 / limit))}; present more, or ask for a higher rate"
            )
    thresholds = _thresholds(presentations)
    passed = [len(scores) - np.searchsorted(np.sort(scores), thresholds, side="left") for scores in groups.values()]
    # Counts, so that 1 of 10 is at most 0.1 whatever the floats say.
    kept = np.all(
        [count <= np.floor(limit * len(s) + 1e-9) for count, s in zip(passed, groups.values(), strict=True)], 0
    )
    return rates(presentations, float(thresholds[int(np.argmax(kept))]), confidence=confidence)


def apcer_at_bpcer(presentations: Presentations, limit: float, *, confidence: float = 0.95) -> PresentationRates:
    """The rates at the highest threshold at which the BPCER is at most ``limit``.

    Args:
        presentations: scores and counts.
        limit: in (0, 1).
        confidence: of the intervals.

    Raises:
        ThresholdError: fewer than 1 / ``limit`` bona fide presentations.
    """
    if not 0.0 < limit < 1.0:
        raise ThresholdError(f"a BPCER lies between 0 and 1, got {limit}")
    bona_fide = np.sort(np.asarray(presentations.bona_fide, np.float64))
    if len(bona_fide) * limit < 1.0 - 1e-9:
        raise ThresholdError(
            f"{len(bona_fide)} bona fide presentations cannot show a BPCER of {limit:g}, need "
            f"{int(np.ceil(1 / limit))}; present more, or ask for a higher rate"
        )
    thresholds = _thresholds(presentations)
    refused = np.searchsorted(bona_fide, thresholds, side="left")
    kept = np.flatnonzero(refused <= np.floor(limit * len(bona_fide) + 1e-9))
    return rates(presentations, float(thresholds[kept[-1]]), confidence=confidence)


def _thresholds(presentations: Presentations) -> Float64:
    """Every threshold that can change a decision: the distinct scores, ascending, then infinity."""
    scores = [
        np.asarray(item, np.float64).ravel() for item in (presentations.bona_fide, *presentations.attacks.values())
    ]
    return np.append(np.unique(np.concatenate(scores)), np.inf)
