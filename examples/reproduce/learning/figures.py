"""Error rates against impostors who took part and against those who did not, with intervals over people.

People are resampled, not trials: a genuine trial counts as often as its person was drawn, an impostor trial as often as
the template's person times the probe's, and the threshold is found anew. Of two models, and under every seed, the same
people are drawn. Rates are means over seeds, each of which has a model, and so a threshold, of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from uvsdk.arrays import Float64, Int64
from uvsdk.evaluation import metrics

FMR: Final = 0.01
_RESAMPLES: Final = 400
_KEPT: Final = 0.1
"""Share of impostor trials that a resample looks at: far more than can lie above its threshold."""


@dataclass(frozen=True, slots=True)
class Trials:
    """Everybody's probes against templates.

    Args:
        names: of the people.
        genuine: scores of people's probes against their own templates, ascending.
        owners: whose they are, as places in ``names``.
        impostors: scores of probes against others' templates, descending; of the highest alone, :data:`_KEPT`.
        pairs: int64 (n, 2), whose template and whose probe each of these is.
        compared: float64 (people, people), how many impostor trials each template has with each person's probes.
        eer: equal error rate, everybody once.
    """

    names: tuple[str, ...]
    genuine: Float64
    owners: Int64
    impostors: Float64
    pairs: Int64
    compared: Float64
    eer: float

    @classmethod
    def of(
        cls, templates: Mapping[str, Float64], genuine: Mapping[str, Float64], impostors: Mapping[str, Float64]
    ) -> Trials:
        """Unit templates (d,) of those who are verified, unit probes (n, d) of the same, and of those who try to be
        them; nobody is an impostor of themselves.
        """
        names = tuple(sorted({*templates, *impostors}))
        place = {name: index for index, name in enumerate(names)}
        rows = np.stack(list(templates.values()))
        claimed = np.array([place[name] for name in templates])
        own = [(genuine[name] @ template, place[name]) for name, template in templates.items()]
        probes = np.concatenate(list(impostors.values()))
        of = np.repeat([place[name] for name in impostors], [len(each) for each in impostors.values()])
        scores = probes @ rows.T
        others = of[:, None] != claimed[None, :]
        template, probe = (
            np.broadcast_to(claimed, scores.shape)[others],
            np.broadcast_to(of[:, None], scores.shape)[others],
        )
        compared = np.zeros((len(names), len(names)))
        np.add.at(compared, (template, probe), 1.0)
        values = scores[others]
        highest = np.argsort(-values, kind="stable")[: max(1, round(_KEPT * len(values)))]
        mine = np.concatenate([each for each, _ in own])
        order = np.argsort(mine, kind="stable")
        return cls(
            names,
            mine[order],
            np.repeat([where for _, where in own], [len(each) for each, _ in own])[order],
            values[highest],
            np.stack([template, probe], axis=1)[highest],
            compared,
            metrics.eer(metrics.curve(mine, values)),
        )

    def fnmr(self, counts: Int64) -> float:
        """Share of genuine trials rejected at a false match rate of :data:`FMR`; NaN where there are no trials.

        ``counts`` says how often each person was drawn.

        >>> trials = Trials.of({"a": np.array([1.0])}, {"a": np.array([[0.9], [0.2]])}, {"b": np.array([[0.5]])})
        >>> trials.fnmr(np.array([1, 1]))  # no impostor may pass, so none up to 0.5 does, and 0.2 is below
        0.5
        """
        total, weights = float(counts @ self.compared @ counts), counts[self.owners]
        if not total or not weights.any():
            return float("nan")
        passed = np.cumsum(counts[self.pairs[:, 0]] * counts[self.pairs[:, 1]]) > FMR * total
        limit = self.impostors[int(np.argmax(passed))] if passed.any() else self.impostors[-1]
        return float(weights[self.genuine <= limit].sum() / weights.sum())


@dataclass(frozen=True, slots=True)
class Change:
    """Rates in percent, and by how much the false non-match rate fell, as a part of that, with the 95 % interval.

    Where the first state never errs, nothing can fall: 0, and an interval that is not a number.
    """

    fnmr: float
    eer: float
    fallen: float
    low: float
    high: float


def changes(states: Mapping[str, Sequence[Trials]]) -> dict[str, Change]:
    """Of the models of several seeds, by name of the state, from the first one."""
    every = list(states.values())
    people = sorted({name for trials in every[0] for name in trials.names})
    places = [np.searchsorted(people, trials.names) for trials in every[0]]

    def rates(drawn: Int64) -> Float64:
        """float64 (states,), means over seeds."""
        found = [[trials.fnmr(drawn[place]) for trials, place in zip(seeds, places, strict=True)] for seeds in every]
        means: Float64 = np.array(found).mean(axis=1)
        return means

    rng = np.random.default_rng(0)
    draws = (np.bincount(rng.integers(0, len(people), len(people)), minlength=len(people)) for _ in range(_RESAMPLES))
    told = rates(np.ones(len(people), np.int64))
    resampled = np.array([rates(drawn) for drawn in draws])
    # A few people may not be drawn at all, or never err.
    resampled = resampled[np.isfinite(resampled).all(axis=1) & (resampled[:, 0] > 0)]
    falls = 100.0 * (1.0 - resampled / resampled[:, :1])
    found = {}
    for place, name in enumerate(states):
        eer = 100.0 * float(np.mean([trials.eer for trials in states[name]]))
        low, high = np.quantile(falls[:, place], (0.025, 0.975)).tolist() if len(falls) else (np.nan, np.nan)
        fallen = 100.0 * float(1.0 - told[place] / told[0]) if told[0] else 0.0
        found[name] = Change(100.0 * float(told[place]), eer, fallen, low, high)
    return found
