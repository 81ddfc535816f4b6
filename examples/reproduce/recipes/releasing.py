"""Which of a training's models a deployment would verify with: devices' reports and the gate, as a server has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from examples.reproduce.partial.corpus import Person
from examples.reproduce.partial.run import Model
from uvsdk.arrays import Float32
from uvsdk.federation import roles
from uvsdk.release.conclusion import conclude
from uvsdk.release.report import GROUPS, report_on
from uvsdk.release.sums import ModelSums
from uvsdk.training import backbones


class Releases:
    """The released parameters, at first those that training starts from.

    Args:
        model: whose module is trained.
        trained: people who train; their templates alone are told.
        evaluating: people who never train.
        seed: deals people into groups.
    """

    def __init__(
        self, model: Model, trained: Mapping[str, Person], evaluating: Mapping[str, Person], *, seed: int
    ) -> None:
        self._model = model
        self._people = [(name, trained[name], False) for name in sorted(trained)]
        self._people += [(name, evaluating[name], True) for name in sorted(evaluating)]
        self._seed = seed
        self.theta: Float32 = model.start
        self.made = 0
        self._sums = self._reports("0")
        self._evaluations = 0

    def consider(self, theta: Float32, *, collapse: float) -> Sequence[str]:
        """Evaluate the module as it is, whose parameters are ``theta``; gives why it is not released."""
        self._evaluations += 1
        version = str(self._evaluations)
        candidate = self._reports(version)
        found = conclude(
            candidate, self._sums, evaluation_id=self._evaluations, collapse=collapse, source="simulation", now=0.0
        )
        if found.passes:
            self.theta, self._sums, self.made = theta.copy(), candidate, self.made + 1
        return found.reasons

    def show(self) -> None:
        """Give the module the released parameters."""
        backbones.unflatten(self._model.module, self.theta)

    def _reports(self, version: str) -> ModelSums:
        nobody = np.empty((0, 0), np.float32)
        reports = []
        for name, person, evaluates in self._people:
            rows = self._model.embed(person.enrol).astype(np.float32)
            report = report_on(rows, model_version=version, impostors="moments", evaluates=evaluates, strangers=nobody)
            reports.append((roles.group(name, key=roles.key_of(self._seed), groups=GROUPS), report))
        return ModelSums.of(reports, model_version=version, impostors="moments")
