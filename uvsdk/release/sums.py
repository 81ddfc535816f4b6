"""What is kept of many reports: sums over the devices of each group, whole numbers all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from uvsdk.arrays import Float32, Int64
from uvsdk.release import grid
from uvsdk.release.report import GROUPS, ModelReport
from uvsdk.scoring.moments import Moments


@dataclass(frozen=True, slots=True)
class GroupSums:
    """Sums over the devices of one group; ``a + b`` is of both. Fields as in :class:`uvsdk.release.report.ModelReport`.

    ``templates`` counts the templates in ``template``, ``told`` the people behind ``genuine``, ``sketched`` those with
    two samples or more behind ``third``. The arrays of moments are empty where nobody sent any.
    """

    devices: int
    templates: int
    told: int
    people: int
    within_people: int
    inverse_samples: int
    trials: int
    genuine: Int64
    rates: Int64
    impostor: Int64
    mean: Int64
    outer: Int64
    within: Int64
    template: Int64
    template_outer: Int64
    third: Int64
    sketched: int

    def __add__(self, other: GroupSums) -> GroupSums:
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in self.__slots__}
        summed: dict[str, Any] = {name: _sum(*pair) for name, pair in pairs.items()}
        return GroupSums(**summed)

    @classmethod
    def of(cls, report: ModelReport) -> Self:
        """Of one device."""
        empty = np.zeros(0, np.int64)
        sums = report.moments[0] if report.moments else None
        return cls(
            devices=1,
            templates=int(sums is not None),
            told=int(report.trials > 0),
            people=0 if sums is None else sums.people,
            within_people=0 if sums is None else sums.within_people,
            inverse_samples=0 if sums is None else sums.inverse_samples,
            trials=report.trials,
            genuine=report.genuine.astype(np.int64),
            rates=report.people.astype(np.int64),
            impostor=report.impostor.astype(np.int64),
            mean=empty if sums is None else sums.mean.astype(np.int64),
            outer=empty if sums is None else sums.outer.astype(np.int64),
            within=empty if sums is None else sums.within.astype(np.int64),
            template=empty if sums is None else sums.template.astype(np.int64),
            template_outer=empty if sums is None else sums.template_outer.astype(np.int64),
            third=empty if sums is None else sums.third.astype(np.int64),
            sketched=sums.within_people if sums is not None and sums.third.size else 0,
        )

    @property
    def strangers(self) -> Moments:
        """Of the people who only evaluate."""
        dimension = len(self.mean)
        return Moments(
            self.people,
            grid.restored(self.mean),
            grid.symmetric(grid.restored(self.outer), dimension),
            self.within_people,
            grid.symmetric(grid.restored(self.within), dimension),
            self.inverse_samples / grid.UNIT,
        )

    @property
    def enrolled(self) -> Moments:
        """Of everybody's templates."""
        dimension = len(self.template)
        zero = np.zeros((dimension, dimension))
        outer = grid.symmetric(grid.restored(self.template_outer), dimension)
        return Moments(self.templates, grid.restored(self.template), outer, 0, zero, float(self.templates))


@dataclass(frozen=True, slots=True)
class ModelSums:
    """The sums of one model version, group by group; a group without a device is left out.

    Args:
        model_version: which.
        impostors: where impostors came from (:data:`uvsdk.release.report.Impostors`).
        groups: of the devices.
        centre: float32 (d,), what was taken out of all that was summed; ``None`` for nothing.
    """

    model_version: str
    impostors: str
    groups: tuple[GroupSums, ...]
    centre: Float32 | None = None

    @classmethod
    def of(
        cls,
        reports: Iterable[tuple[int, ModelReport]],
        *,
        model_version: str,
        impostors: str,
        centre: Float32 | None = None,
    ) -> Self:
        """Add up reports on one model, each with the group of its device."""
        found: dict[int, GroupSums] = {}
        for group, report in reports:
            sums = GroupSums.of(report)
            found[group % GROUPS] = found[group % GROUPS] + sums if group % GROUPS in found else sums
        return cls(model_version, impostors, tuple(found[group] for group in sorted(found)), centre)

    @property
    def total(self) -> GroupSums | None:
        """Of all groups; ``None`` of no device."""
        return total(self.groups)

    def without(self, place: int) -> GroupSums | None:
        """Of all groups but one."""
        return total(self.groups[:place] + self.groups[place + 1 :])


def total(groups: Iterable[GroupSums]) -> GroupSums | None:
    """The sum of groups; ``None`` of none."""
    whole: GroupSums | None = None
    for group in groups:
        whole = group if whole is None else whole + group
    return whole


def _sum(first: int | Int64, second: int | Int64) -> int | Int64:
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray) and 0 in (first.size, second.size):
        return first if first.size else second
    return first + second
