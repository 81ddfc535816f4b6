"""Why impostors' scores have a shorter upper tail than a normal law where single samples are poor.

The score of a stranger's sample x against somebody's template is, on average over templates, x . mu. Where some
samples are poor (noise, hardly any speech), they score low against everybody: they widen the law of scores on its lower
side alone, and mean and deviation then promise an upper tail that is not there. The third cumulant of x . mu tells it,
as far as it comes from samples and not from people:

    kappa = E(x . mu)^3 - E(m . mu)^3,   about the mean of all, m the mean of a person's samples

Of the third cumulant of the scores it is the part that reaches into the tail; the other, of how particular people fit
each other, does not (examples/reproduce/selfcalibration). It needs third moments, which are summed as sketches
(:mod:`uvsdk.scoring.sketch`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from uvsdk.arrays import Float64
from uvsdk.scoring.moments import Moments
from uvsdk.scoring.sketch import Spectrum, inner, pair_spectra, spectra


@dataclass(frozen=True, slots=True, eq=False)
class ThirdMoments:
    """Sums by group of devices, g of them.

    Args:
        strangers: int (g,), people with two samples or more behind ``excess``.
        templates: int (g,), templates.
        excess: complex128 (g, f), spectra of the sums of :func:`uvsdk.scoring.sketch.excess`.
        within: complex128 (g, 3, f), of the sums of covariances within people.
        means: complex128 (g, 3, f), of the sums of people's means.
        axes: complex128 (g, 3, f), of the sums of templates.
        people: int (g,), behind ``means``.
    """

    strangers: Float64
    templates: Float64
    excess: Spectrum
    within: Spectrum
    means: Spectrum
    axes: Spectrum
    people: Float64

    @classmethod
    def of(cls, strangers: Sequence[Moments], excess: Sequence[Float64], templates: Sequence[Moments]) -> Self:
        """Of sums by group; ``excess`` of the strangers', float64 (m,) each."""
        return cls(
            np.array([item.within_people for item in strangers], np.float64),
            np.array([item.people for item in templates], np.float64),
            np.stack([np.fft.rfft(item) for item in excess]),
            np.stack([pair_spectra(item.within) for item in strangers]),
            np.stack([spectra(item.mean) for item in strangers]),
            np.stack([spectra(item.mean) for item in templates]),
            np.array([item.people for item in strangers], np.float64),
        )

    def cumulant(self, without: int | None = None) -> float:
        """kappa, of all groups or of all but one; 0 where it cannot be told.

        Nobody is held against the mean of templates that their own is part of: half of the groups give mu, the others
        the samples, in turn, and each half its own mean of all.
        """
        groups = [group for group in range(len(self.strangers)) if group != without]
        found = weight = 0.0
        for start in range(len(groups)):
            turned = groups[start:] + groups[:start]
            axes, samples = turned[: len(groups) // 2], turned[len(groups) // 2 :]
            templates, people = float(self.templates[axes].sum()), float(self.strangers[samples].sum())
            if not templates or people < 2:
                continue
            mu = np.prod(self.axes[axes].sum(axis=0) / templates, axis=0)
            centre = self.means[samples].sum(axis=0) / float(self.people[samples].sum())
            # About a centre c instead of the origin: less c (x) W in each of the three orders of its factors.
            excess = self.excess[samples].sum(axis=0) - (centre * self.within[samples].sum(axis=0)).sum(axis=0)
            found += inner(excess, mu)
            weight += people
        return found / weight if weight else 0.0
