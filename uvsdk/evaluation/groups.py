"""Error rates of groups of people (by age, language, device, ...) at one common threshold.

A label file is CSV: ``person`` and one column an attribute, ``person,accent,microphone``. Each attribute is looked at
by itself. What is reported of a group: FNMR of its people; FMR within it (both people in it) and across (one in it,
one not); and how FNMR and FMR within differ from those of all other groups together. A group of few people is marked
and nothing is concluded from it: intervals over a handful of people are themselves uncertain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from uvsdk.errors import SettingsError
from uvsdk.evaluation import lines
from uvsdk.evaluation.bootstrap import Interval
from uvsdk.evaluation.rates import Rate, Resampled, difference
from uvsdk.evaluation.trials import Trials

SMALL_GROUP = 30
"""People below which a group is marked as small: the rule of 30 (ISO/IEC 19795-1, annex B), with people for trials."""


@dataclass(frozen=True, slots=True)
class GroupLabels:
    """A label file.

    Args:
        attributes: names of the columns after ``person``.
        values: person -> one value an attribute; empty where unknown.
    """

    attributes: tuple[str, ...]
    values: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class GroupRates:
    """One group at the common threshold; a rate is ``None`` where there is no trial.

    Args:
        name: the value of the attribute.
        people: in the trials.
        fnmr: of the group's people.
        fnmr_difference: to the people of all other groups.
        fmr_within: both people of a trial in the group.
        fmr_within_difference: to trials within any one of the other groups.
        fmr_across: exactly one of them in the group, the other's group known.
    """

    name: str
    people: int
    fnmr: Rate | None
    fnmr_difference: Interval | None
    fmr_within: Rate | None
    fmr_within_difference: Interval | None
    fmr_across: Rate | None

    @property
    def small(self) -> bool:
        """Whether it has fewer than :data:`SMALL_GROUP` people."""
        return self.people < SMALL_GROUP


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute: its groups by name, and how many people of the trials it says nothing of."""

    name: str
    groups: tuple[GroupRates, ...]
    unknown_people: int


def read(path: Path) -> GroupLabels:
    """A label file.

    Raises:
        SettingsError: the heading does not start with ``person`` or names no attribute, or lines are malformed (each
            is named).
    """
    malformed = lines.MalformedLines(path)
    values: dict[str, tuple[str, ...]] = {}
    with closing(lines.read(path)) as rows:
        columns = lines.commas(next(rows, (0, ""))[1])
        if len(columns) < 2 or columns[0] != "person" or "" in columns or len(set(columns)) != len(columns):
            raise SettingsError(
                f"{path.name} needs the heading person,ATTRIBUTE[,ATTRIBUTE...], got {','.join(columns) or 'nothing'}"
            )
        for number, line in rows:
            person, *cells = lines.commas(line) or [""]
            if not person or len(cells) != len(columns) - 1:
                malformed.add(number, f"{len(cells)} values for {len(columns) - 1} attributes, or no person")
            elif values.setdefault(person, tuple(cells)) != tuple(cells):
                malformed.add(number, "other values for a person who was listed before")
    malformed.check()
    return GroupLabels(tuple(columns[1:]), values)


def measure(
    trials: Trials, labels: GroupLabels, *, threshold: float, resamples: int = 1000, seed: int = 0
) -> tuple[Attribute, ...]:
    """Every attribute's groups at one threshold.

    Raises:
        SettingsError: the label file names nobody of the trials.
    """
    present = np.union1d(trials.template_subject, trials.probe_subject).tolist()
    if not any(trials.subjects[index] in labels.values for index in present):
        raise SettingsError(
            f"none of the {len(labels.values)} people of the label file is among the {len(present)} of the trials; the "
            "column person holds their names as the folders or the list have them"
        )
    drawn = Resampled(trials, resamples=resamples, seed=seed)
    return tuple(
        _attribute(trials, drawn, labels, column, present, threshold) for column in range(len(labels.attributes))
    )


def worst(attributes: Sequence[Attribute]) -> tuple[str, GroupRates] | None:
    """Attribute and group with the highest FMR within it; small groups are left out, ``None`` where all are."""
    found = [
        (group.fmr_within.value, attribute.name, group)
        for attribute in attributes
        for group in attribute.groups
        if group.fmr_within is not None and not group.small
    ]
    return max(found, key=lambda item: item[0])[1:] if found else None


def members(people: Sequence[str], labels: GroupLabels, attribute: str, group: str) -> list[int]:
    """Places in ``people`` of those whose ``attribute`` is ``group``."""
    column = labels.attributes.index(attribute)
    return [
        place for place, name in enumerate(people) if name in labels.values and labels.values[name][column] == group
    ]


def _attribute(
    trials: Trials, drawn: Resampled, labels: GroupLabels, column: int, present: list[int], threshold: float
) -> Attribute:
    none = ("",) * len(labels.attributes)
    value = {index: labels.values.get(trials.subjects[index], none)[column] for index in present}
    names = sorted({name for name in value.values() if name})
    number = {name: place for place, name in enumerate(names)}
    group = np.full(len(trials.subjects), -1, np.int64)
    for index, name in value.items():
        group[index] = number.get(name, -1)
    template, probe = group[trials.template_subject], group[trials.probe_subject]
    own = trials.is_genuine
    accepted = trials.scores >= threshold
    count = len(names)
    known = (template >= 0) & (probe >= 0)
    genuine, within = np.where(own, probe, -1), np.where(~own & known & (template == probe), probe, -1)
    across = ~own & known & (template != probe)
    fnmr = drawn.tally(~accepted, [genuine], count)
    fmr = drawn.tally(accepted, [within], count)
    fmr_across = drawn.tally(accepted, [np.where(across, template, -1), np.where(across, probe, -1)], count)
    return Attribute(
        labels.attributes[column],
        tuple(
            GroupRates(
                name,
                sum(1 for found in value.values() if found == name),
                fnmr.rate(place),
                _difference(fnmr.rate(place), fnmr.rest(place)),
                fmr.rate(place),
                _difference(fmr.rate(place), fmr.rest(place)),
                fmr_across.rate(place),
            )
            for place, name in enumerate(names)
        ),
        sum(1 for found in value.values() if not found),
    )


def _difference(one: Rate | None, other: Rate | None) -> Interval | None:
    return difference(one, other) if one is not None and other is not None else None
