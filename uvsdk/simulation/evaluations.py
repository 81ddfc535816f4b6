"""Candidates of a simulated training, evaluated, released and returned from as a server and its devices do it.

Devices report by :func:`uvsdk.release.report.report_on`, :func:`uvsdk.release.conclusion.conclude` says what may be
released, and :func:`uvsdk.release.backtracking.follow` what training goes on from.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import numpy as np

from uvsdk.arrays import Float32
from uvsdk.bundle.manifest import CENTRED
from uvsdk.errors import BundleError
from uvsdk.federation import roles
from uvsdk.federation.round import ServerState
from uvsdk.release.backtracking import Course, follow
from uvsdk.release.centring import centred
from uvsdk.release.conclusion import Conclusion, conclude
from uvsdk.release.report import GROUPS, SUMMED, report_on
from uvsdk.release.sums import ModelSums
from uvsdk.simulation.engine import Simulation
from uvsdk.simulation.records import RoundRecord
from uvsdk.training import backbones

START: Final = "round 0"


class Evaluations:
    """Handed to :meth:`Simulation.run` as ``on_round``: every ``evaluate_every`` committed rounds and when they are
    used up the candidate is evaluated by the simulation's evaluators.

    Attributes:
        released: float32 (P,), what a deployment would verify with; at first what training starts from.
        releases: how many candidates were released.
        course: of the training.
        concluded: what each evaluation found, oldest first.
        returns: evaluations after which training went back to the best.
    """

    def __init__(self, simulation: Simulation) -> None:
        """``simulation`` is one that has not begun."""
        self.released: Float32 = simulation.theta.copy()
        self.releases = 0
        self.course = Course()
        self.concluded: list[Conclusion] = []
        self.returns = 0
        self._simulation = simulation
        self._best: ServerState | None = None
        self._sums = self._reports(START)
        self._centre()

    def __call__(self, record: RoundRecord) -> None:
        """After a round."""
        simulation, config = self._simulation, self._simulation.config
        if not record.committed:
            return
        if self._best is None:
            # The first round has admitted everybody; class vectors drawn at the start are those of the state before.
            self._best = simulation.former
        every = config.evaluate_every
        if simulation.committed >= config.rounds or (every and simulation.committed % every == 0):
            self.evaluate(f"round {record.round_id}", collapse=record.mean_cosine)

    def evaluate(self, version: str, *, collapse: float) -> None:
        """Measure the candidate beside the released model, release it where the gate lets it, and go by what is best.

        Args:
            version: what to call it.
            collapse: mean cosine of different class vectors; NaN where there are none.
        """
        simulation = self._simulation
        try:
            sums = self._reports(version)
        except BundleError:  # not finite: nobody has anything to report
            return
        found = conclude(
            sums, self._sums, evaluation_id=len(self.concluded) + 1, collapse=collapse, source="simulation", now=0.0
        )
        self.concluded.append(found)
        if found.compared is not None:
            before, returns = self.course, simulation.config.backtracking
            self.course = follow(before, found.compared, returns=returns, sure=version == CENTRED)
            if self.course.worse <= before.worse:
                self._best = simulation.present
            elif returns and self._best is not None:
                self.returns += 1
                simulation.go_back(self._best, step=self.course.step)
            simulation.stopped = self.course.rests
        if found.passes:
            self.released, self._sums = simulation.theta.copy(), sums
            self.releases += 1

    def _centre(self) -> None:
        """Let a head that is made for it begin centred, and measure that at once, as a server does."""
        simulation = self._simulation
        if simulation.method.impostors not in SUMMED or not any(
            isinstance(layer, backbones.Affine) for layer in simulation.trunk.modules()
        ):
            return
        start = simulation.present
        theta = centred(start.theta, self._sums, dimension=simulation.dimension)
        if theta is not None:
            simulation.go_back(replace(start, theta=theta), step=start.step)
            self._best = start
            self.evaluate(CENTRED, collapse=math.nan)
            self._best = None  # what the first round makes of the start holds those who join

    def _reports(self, version: str) -> ModelSums:
        """What devices report of the parameters as they are."""
        simulation, nobody = self._simulation, np.empty((0, 0), np.float32)
        reports = []
        for user in simulation.population.users:
            rows = simulation.population.samples(user).embed(simulation.trunk.eval(), None).numpy().astype(np.float32)
            evaluates = user in simulation.evaluators
            report = report_on(rows, model_version=version, impostors="moments", evaluates=evaluates, strangers=nobody)
            reports.append((roles.group(user, key=roles.key_of(simulation.seed), groups=GROUPS), report))
        return ModelSums.of(reports, model_version=version, impostors="moments")
