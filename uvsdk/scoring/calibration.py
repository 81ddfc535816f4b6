"""What was measured of one model version: impostor scores, and where people's recordings allowed it, how a score and
its conditions become a likelihood ratio."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from uvsdk.arrays import Float, Float32, Float64, Int64
from uvsdk.errors import ThresholdError
from uvsdk.records.transfer import reduce_to_fields
from uvsdk.scoring.cohort import Cohort, Normalisation
from uvsdk.scoring.compensation import Compensation
from uvsdk.scoring.conditions import Condition, Conditions
from uvsdk.scoring.domain import Domain, Placement
from uvsdk.scoring.intervals import clopper_pearson
from uvsdk.scoring.likelihood import LikelihoodRatio, features
from uvsdk.scoring.ranked import RankedScores, keep
from uvsdk.scoring.tail import Tail
from uvsdk.scoring.threshold import Scale, Threshold

STRICTEST_DEFAULT: Final = 1e-4
"""The default false match rate goes no lower: NIST SP 800-63B-4, 3.2.3, asks for one in 10,000 or better."""

LAXEST_DEFAULT: Final = 0.01
"""Nor higher: where the trials cannot show one in a hundred there is no default, and a rate must be named."""

_KEPT_THRESHOLDS: Final = 64


@dataclass(frozen=True, slots=True)
class Calibration:
    """Impostor scores of one model version, from which a threshold for any supported false match rate is read.

    Intervals are Clopper-Pearson's, as if trials were independent. They share people, so they are not quite:
    ``uvsdk calibrate`` prints the interval over people beside them.

    Args:
        impostor: cosine similarities of impostor trials, float32 (N,), ascending.
        model_version: the model that gave them.
        source: in words, whose recordings the trials were made of.
        ratio: turns a score and its conditions into a likelihood ratio; ``None`` where that was not fitted.
        cohort: other people's embeddings, for AS-norm and for whoever wants to calibrate again; ``None`` without.
        people: behind the trials; 0 where that is not known.
        measured_unix_s: when they were made, seconds since 1970; 0 where that is not known.
        above: int64 (N,): how many trials score at least as high as each of ``impostor``, where not all are kept;
            ``None`` where all are.
        tail: a law of impostors' scores in place of trials, from which cosine thresholds are then read; ``impostor``
            holds its quantiles.
        domain: where the embeddings of those people lie, as they are compared: compensated where there is a ratio, and
            centred where there is a centre.
        centre: float32 (d,), the mean of many people's means, which is subtracted from both sides before a cosine is
            taken (:meth:`compared`); ``impostor`` and ``tail`` are of such cosines. ``None`` for cosines of the
            embeddings as they are. A ratio has a centre of its own, so there is none beside it.
    """

    impostor: Float32 = field(repr=False)
    model_version: str
    source: str
    ratio: LikelihoodRatio | None = field(default=None, repr=False)
    cohort: Cohort | None = field(default=None, repr=False)
    people: int = 0
    measured_unix_s: float = 0.0
    above: Int64 | None = field(default=None, repr=False)
    tail: Tail | None = field(default=None, repr=False)
    domain: Domain | None = field(default=None, repr=False)
    centre: Float32 | None = field(default=None, repr=False)
    # An interval takes milliseconds, a verification asks for the same one each time.
    _known: dict[tuple[float, Scale], Threshold] = field(default_factory=dict, init=False, repr=False, compare=False)
    _normalisation: Normalisation | None = field(default=None, init=False, repr=False, compare=False)
    _digest: str = field(default="", init=False, repr=False, compare=False)
    _ranked: RankedScores | None = field(default=None, init=False, repr=False, compare=False)
    _centring: Compensation | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.people < 0 or not 0.0 <= self.measured_unix_s < math.inf:
            raise ValueError("the people of a calibration are 0 or more, and so are the seconds of its day")
        if self.above is not None:
            object.__setattr__(self, "_ranked", RankedScores(self.impostor, self.above))
        if self.centre is not None:
            if self.ratio is not None or self.cohort is not None:
                raise ValueError("a likelihood ratio and its cohort have a centre of their own; cosines have none then")
            object.__setattr__(self, "_centring", Compensation.centring(self.centre))
        if self.ratio is None or not self.ratio.top:
            return
        if self.cohort is None:
            raise ValueError("AS-norm judges scores against a cohort, and there is none")
        normalisation = Normalisation.of(self.cohort, self.ratio.compensation, top=self.ratio.top)
        object.__setattr__(self, "_normalisation", normalisation)

    __reduce__ = reduce_to_fields

    @classmethod
    def from_scores(
        cls,
        impostor: Float,
        *,
        model_version: str,
        source: str,
        kept: int = 100_000,
        ratio: LikelihoodRatio | None = None,
        cohort: Cohort | None = None,
        people: int = 0,
        measured_unix_s: float = 0.0,
        domain: Domain | None = None,
    ) -> Calibration:
        """Sort the scores, keeping at most ``kept``: the highest all, each with its count."""
        ranked = keep(impostor, kept)
        return cls(
            ranked.values,
            model_version,
            source,
            ratio,
            cohort,
            people,
            measured_unix_s,
            above=ranked.above if ranked.trials > len(ranked.values) else None,
            domain=domain,
        )

    @property
    def digest(self) -> str:
        """SHA-256, 64 hexadecimal digits, over all that thresholds and likelihood ratios are read from.

        A threshold names it, so that it is never held against another calibration of the same model. The cohort is
        part of it under AS-norm only: elsewhere it decides no verification, and is left out of what is served.
        """
        if not self._digest:
            # The record is written by the module that reads calibrations, which imports this one.
            from uvsdk.scoring.record import to_bytes

            deciding = self if self._normalisation is not None else replace(self, cohort=None)
            digest = hashlib.sha256(b"uvsdk calibration 1\n" + to_bytes(deciding)).hexdigest()
            object.__setattr__(self, "_digest", digest)
        return self._digest

    @property
    def centring(self) -> Compensation | None:
        """What takes the centre out of a row; ``None`` where cosines are of rows as they are."""
        return self._centring

    @property
    def centre_digest(self) -> str:
        """Names the centre: the first 16 hexadecimal digits of its SHA-256; empty where there is none."""
        return "" if self.centre is None else digest_of(self.centre)

    def compared(self, rows: Float) -> Float64:
        """Rows as this calibration's cosines compare them, (..., d), unit -> float64 (..., d), unit.

        The products of two are those that its cosine thresholds are of. Rows without a centre are as they were; what
        lies at the centre itself is zero, and resembles nothing. Templates and probes are kept as they are, and come
        here when they are compared, so another calibration of the same model changes no template.

        >>> impostor = np.linspace(-1, 0.5, 2000, dtype=np.float32)
        >>> whole = Calibration.from_scores(impostor, model_version="m", source="an example")
        >>> sides = np.array([[0.6, 0.8], [-0.6, 0.8]], np.float32)
        >>> float(np.prod(whole.compared(sides), axis=0).sum().round(6))  # 0.64 - 0.36
        0.28
        >>> centred = replace(whole, centre=np.array([0.0, 0.8], np.float32)).compared(sides)
        >>> float(np.prod(centred, axis=0).sum().round(6))  # what they share is out: they point apart
        -1.0
        """
        if self._centring is None:
            return np.asarray(rows, np.float64)
        return self._centring.apply(np.asarray(rows, np.float32))

    def without_cohort(self) -> Calibration:
        """The same measurement without anybody's embedding.

        AS-norm is a comparison with the cohort, so a likelihood ratio that rests on it goes as well: what is left
        decides by the cosine.
        """
        if self.cohort is None:
            return self
        normalised = self.ratio is not None and self.ratio.top > 0
        if not normalised:
            return replace(self, cohort=None)
        # The domain is of rows compensated as the ratio has it; cosines are of rows as they are.
        return replace(self, cohort=None, ratio=None, domain=None)

    @property
    def scale(self) -> Scale:
        """The scale on which this calibration decides best: ``llr`` where it has a ratio, else ``cosine``."""
        return "cosine" if self.ratio is None else "llr"

    @property
    def ranked(self) -> RankedScores:
        """The impostors' cosines with their counts."""
        if self._ranked is None:
            object.__setattr__(self, "_ranked", RankedScores.of(self.impostor))
        assert self._ranked is not None
        return self._ranked

    def trials(self, scale: Scale | None = None) -> int:
        """Impostor trials that a rate is read from; of a law of scores, pairs of a stranger and a template.

        Args:
            scale: :attr:`scale` where left out.
        """
        return self._impostors(scale or self.scale)[1]

    @property
    def account(self) -> str:
        """People and trials in words, as everything that tells of a calibration says them.

        >>> scores = np.linspace(-1, 0.5, 2000, dtype=np.float32)
        >>> Calibration.from_scores(scores, model_version="m", source="an example", people=64).account
        '2,000 impostor trials of 64 people'
        """
        if self.tail is not None:
            return (
                f"sums over {self.tail.people:,} people who do not train and {self.tail.templates:,} templates, which "
                f"stand for {self.trials('cosine'):,} impostor trials"
            )
        words = f"{self.trials('cosine'):,} impostor trials{self._of_people}"
        if self.ratio is not None and self.ratio.trials != self.trials("cosine"):
            words += f" on the cosine, {self.ratio.trials:,} on the likelihood ratio"
        return words

    @property
    def _of_people(self) -> str:
        return f" of {self.people:,} people" if self.people else ""

    def default_fmr(self, scale: Scale | None = None) -> float:
        """The false match rate to decide at where nobody names one: :meth:`strictest`, and at most 1 %.

        Args:
            scale: of the threshold; :attr:`scale` where left out.

        Raises:
            ThresholdError: not even :data:`LAXEST_DEFAULT` is supported.

        >>> scores = np.linspace(-1, 0.5, 2000, dtype=np.float32)
        >>> Calibration.from_scores(scores, model_version="m", source="an example").default_fmr()
        0.0015
        """
        fmr = self.strictest(scale)
        if fmr > LAXEST_DEFAULT:
            raise ThresholdError(
                f"{self.trials(scale)} impostor trials{self._of_people} show no false match rate below {fmr:g}, and "
                f"none above {LAXEST_DEFAULT:g} is taken unless it is asked for by number; calibrate with more people"
            )
        return fmr

    def strictest(self, scale: Scale | None = None) -> float:
        """The strictest false match rate that these trials measure, but not below :data:`STRICTEST_DEFAULT`.

        Of three conditions the highest rate is taken, rounded up to two digits: the rule of three holds (see
        :meth:`threshold`); at least one impostor value lies above the threshold, so that its rate has an interval
        bounded on both sides and is not extrapolated beyond the trials; and NIST's one in 10,000. Without the second
        condition a card of 40,860 trials puts the threshold above every impostor it saw and rejects 31 % of genuine
        recordings; with it, 4 % (LibriSpeech, templates of three).

        Args:
            scale: as for :meth:`default_fmr`.
        """
        chosen = scale or self.scale
        if chosen == "cosine" and self.tail is not None:
            return max(STRICTEST_DEFAULT, self.tail.lowest_fmr)
        ranked, trials = self._impostors(chosen)
        least = [STRICTEST_DEFAULT, 3 / max(trials, 1), 1 / max(ranked.trials, 1)]
        if chosen == "llr":
            # No threshold lies above the highest ratio there is, so those who reach it pass at any rate.
            least.append(ranked.count(self._needed().highest)[1] / ranked.trials)
        return two_digits(max(least))

    def lowest_fmr(self, scale: Scale | None = None) -> float:
        """The lowest false match rate that :meth:`threshold` takes: three over the trials, or what a law supports."""
        chosen = scale or self.scale
        if chosen == "cosine" and self.tail is not None:
            return self.tail.lowest_fmr
        return 3 / max(self.trials(chosen), 1)

    def threshold(self, fmr: float, scale: Scale = "cosine") -> Threshold:
        """The smallest score at which the measured false match rate is at most ``fmr``.

        Args:
            fmr: false match rate to aim for, in (0, 1).
            scale: of the score; :attr:`scale` is the one to decide by.

        Raises:
            ThresholdError: fewer than ``3 / fmr`` trials: by the rule of three not even a clean sheet would show
                such a rate; or the scale ``llr`` where there is no ratio.
        """
        found = self._known.get((fmr, scale))
        if found is None:
            found = self._measure(fmr, scale)
            if len(self._known) >= _KEPT_THRESHOLDS:  # whoever asks for ever new rates fills no memory
                self._known.clear()
            self._known[fmr, scale] = found
        return found

    def interval(self, score: float, scale: Scale = "cosine") -> tuple[float, float]:
        """95 % interval (Clopper-Pearson) of the false match rate at ``score``.

        Raises:
            ThresholdError: the scale ``llr`` where there is no ratio.
        """
        if scale == "cosine" and self.tail is not None:
            return self.tail.interval(score)
        ranked, trials = self._impostors(scale)
        if not ranked.trials:
            return 0.0, 1.0
        # Of a likelihood ratio there may be more values, of copies of the same recordings, than trials; or, where not
        # every pair is scored under every condition, fewer.
        size = min(trials, ranked.trials)
        # Between two kept scores the count is known within bounds, and so is the rate.
        least, most = (round(count / ranked.trials * size) for count in ranked.count(score))
        low, high = clopper_pearson(least, size)
        return low, high if most == least else clopper_pearson(most, size)[1]

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Those that a decision depends on."""
        return () if self.ratio is None else self.ratio.surroundings.conditions

    def place(
        self,
        template_row: Float32,
        probe_row: Float32,
        *,
        template: Conditions,
        probe: Conditions,
    ) -> Placement:
        """Whether a template and a probe, float32 (d,) each, lie where this was measured.

        Args:
            template_row: unit.
            probe_row: likewise.
            template: conditions of the template.
            probe: of the probe.
        """
        if self.domain is None:
            return Placement()
        if self.ratio is None:
            return self.domain.place(self.compared(template_row), self.compared(probe_row))
        compared = [self.ratio.compensation.apply(row) for row in (template_row, probe_row)]
        surroundings = self.ratio.surroundings
        sides = {"template": template, "probe": probe}
        lacking = tuple(f"{side} {name}" for side, seen in sides.items() for name in surroundings.lacking(seen))
        found = self.domain.place(*compared, lacking=lacking)
        # Compensated rows are brought to length 1; in the cosine they count as long as they are.
        lengths = [float(np.linalg.norm(self.ratio.compensation.remainder(row))) for row in (template_row, probe_row)]
        return replace(found, cosine_rise=found.rise * lengths[0] * lengths[1])

    def llrs(
        self,
        templates: Float32,
        probes: Float32,
        *,
        template: Sequence[Conditions],
        probe: Sequence[Conditions],
        rise: float = 0.0,
    ) -> Float64:
        """Natural-log likelihood ratio of each pair of rows, float64 (n,).

        Args:
            templates: float32 (n, d), unit rows.
            probes: likewise.
            template: conditions of each template.
            probe: conditions of each probe.
            rise: how much higher strangers score than those of the calibration (:attr:`Placement.rise`); of one pair.

        Raises:
            ThresholdError: there is no ratio.
        """
        ratio = self._needed()
        first, second = ratio.compensation.apply(templates), ratio.compensation.apply(probes)
        if self._normalisation is None:
            scores = (first * second).sum(axis=1) - rise
        elif len(first) == 1:
            scores = np.array([self._normalisation.score(first[0], second[0], rise=rise)])
        else:
            scores = self._normalisation.scores(first, second)
        return ratio.ratios(scores, features(ratio.surroundings.place(template), ratio.surroundings.place(probe)))

    def llr(
        self,
        template_row: Float32,
        probe_row: Float32,
        *,
        template: Conditions,
        probe: Conditions,
        rise: float = 0.0,
    ) -> float:
        """:meth:`llrs` of one pair, float32 (d,) each. Raises :class:`ThresholdError` where there is no ratio."""
        rows = template_row[None], probe_row[None]
        return float(self.llrs(*rows, template=[template], probe=[probe], rise=rise)[0])

    def _needed(self) -> LikelihoodRatio:
        if self.ratio is None:
            raise ThresholdError(
                "this calibration holds impostor scores only, so there is no likelihood ratio; run uvsdk calibrate "
                "on people with two recordings or more each"
            )
        return self.ratio

    def _impostors(self, scale: Scale) -> tuple[RankedScores, int]:
        """Impostor values with their counts, and the number of trials they stand for."""
        if scale == "cosine":
            if self.tail is not None:
                return self.ranked, self.tail.people * self.tail.templates
            return self.ranked, self.ranked.trials
        ratio = self._needed()
        return ratio.ranked, ratio.trials

    def _measure(self, fmr: float, scale: Scale) -> Threshold:
        if not 0.0 < fmr < 1.0:
            raise ThresholdError(f"a false match rate lies between 0 and 1, got {fmr}")
        ranked, trials = self._impostors(scale)
        if scale == "cosine" and self.tail is not None:
            return self._threshold(float(np.float32(min(self.tail.threshold(fmr), 1.0 + 1e-6))), fmr, scale)
        if trials * fmr < 3 - 1e-9:  # 3 / 20,000 times 20,000 is a hair below 3
            raise ThresholdError(
                f"a false match rate of {fmr:g} needs at least {math.ceil(3 / fmr - 1e-9)} impostor trials, there are "
                f"{trials}{self._of_people}; ask for a higher rate, let fallback take the lowest that "
                "they support, or calibrate with more people"
            )
        score = ranked.threshold(math.floor(fmr * ranked.trials + 1e-9))
        if scale == "cosine":
            score = min(score, 1.0 + 1e-6)
        elif score > self._needed().highest:
            raise ThresholdError(
                f"more than {fmr:g} of the impostor trials have the highest ratio there is, so no threshold fits; "
                "ask for a higher rate, or calibrate with more people"
            )
        return self._threshold(score, fmr, scale)

    def _threshold(self, score: float, fmr: float, scale: Scale) -> Threshold:
        return Threshold(
            score,
            fmr,
            self._impostors(scale)[1],
            self.interval(score, scale),
            self.model_version,
            scale,
            self.digest,
            centre=self.centre_digest,
        )


def digest_of(centre: Float32) -> str:
    """Names a centre, float32 (d,): 16 hexadecimal digits."""
    return hashlib.sha256(np.ascontiguousarray(centre, np.dtype("<f4")).tobytes()).hexdigest()[:16]


def two_digits(rate: float) -> float:
    """``rate``, rounded up to two significant digits: 0.000312 -> 0.00032."""
    digits = 1 - math.floor(math.log10(rate))
    return round(math.ceil(round(rate * 10.0**digits, 6)) / 10.0**digits, digits)
