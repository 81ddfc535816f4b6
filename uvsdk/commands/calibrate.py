"""``uvsdk calibrate``: measure impostor scores on a folder of people and fit a likelihood ratio, into a bundle."""

from __future__ import annotations

import argparse
import calendar
import datetime
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from uvsdk.cli import Command

if TYPE_CHECKING:
    from uvsdk.evaluation.bootstrap import Interval
    from uvsdk.evaluation.calibrating import Fitted
    from uvsdk.evaluation.groups import Attribute, GroupLabels

TARGETS = (0.1, 0.01, 0.001, 0.0001)
_RESAMPLES = 200


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("bundle", type=Path, help="the model bundle (.uvb)")
    parser.add_argument("folder", type=Path, help="a folder for each person, or a CSV list: person,role,path")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="BUNDLE", help="the calibrated bundle")
    parser.add_argument("--enrol", type=int, default=3, metavar="N", help="enrolment samples a person (default 3)")
    parser.add_argument("--source", metavar="TEXT", help="whose samples these are, in words; kept in the bundle")
    parser.add_argument(
        "--with-cohort",
        action="store_true",
        help="put the people's embeddings into the bundle: vectors as personal as their templates, in a file "
        "that may be handed on. Without it the bundle holds distributions of scores only. `uvsdk identify` measures "
        "its threshold on them; a server never serves them",
    )
    parser.add_argument(
        "--as-norm",
        action="store_true",
        help="judge scores against the cohort (AS-norm); needs --with-cohort, and works only where this very file is "
        "used: what a server serves decides by the cosine instead",
    )
    parser.add_argument(
        "--faces", choices=("largest", "single", "only"), default="single", help="whose face is meant (default single)"
    )
    parser.add_argument(
        "--groups",
        type=Path,
        metavar="CSV",
        help="person,ATTRIBUTE,...: the false match rate within each group as well",
    )
    parser.add_argument(
        "--worst-group",
        action="store_true",
        help="keep the trials within the worst group of --groups, so that a false match rate holds there",
    )
    parser.add_argument("--no-copies", action="store_true", help="make no shorter, noisier, smaller copies of samples")
    parser.add_argument("--seed", type=int, default=0, help="of copies and of the draw of trials (default 0)")
    parser.add_argument(
        "--date", type=_day, default="", metavar="YYYY-MM-DD", help="that the calibration is dated by (default today)"
    )


def _day(text: str) -> datetime.date:
    try:
        return datetime.date.fromisoformat(text) if text else datetime.datetime.now(datetime.UTC).date()
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"a date is written YYYY-MM-DD, got {text!r}") from error


def run(arguments: argparse.Namespace) -> int:
    """Calibrate, save the bundle, say which false match rates the trials support."""
    from uvsdk.bundle import Bundle
    from uvsdk.commands.evaluate import find_people
    from uvsdk.evaluation import calibrating, groups
    from uvsdk.evaluation.observations import observe
    from uvsdk.modality import get

    _check(arguments)
    bundle = Bundle.open(arguments.bundle)
    people = find_people(arguments.folder, arguments.enrol)
    names = tuple(person.name for person in people)
    labels = None if arguments.groups is None else groups.read(arguments.groups)
    seen, failures = observe(people, bundle, worse=not arguments.no_copies, faces=arguments.faces, seed=arguments.seed)

    def fit(among: list[int] | None, words: str) -> Fitted:
        return calibrating.fit(
            seen,
            model_version=bundle.version,
            source=(arguments.source or f"{seen.people} people, {arguments.enrol} enrolment samples each") + words,
            as_norm=arguments.as_norm,
            keep_cohort=arguments.with_cohort,
            directions=get(bundle.manifest.modality).directions,
            seed=arguments.seed,
            now=calendar.timegm(arguments.date.timetuple()) * 1.0,
            among=among,
        )

    fitted = fit(None, "")
    if labels is not None and arguments.worst_group:
        attribute, group = _worst_group(fitted, names, labels, arguments.seed)
        fitted = fit(groups.members(names, labels, attribute, group), f"; trials within {attribute} {group}")
    bundle.with_calibration(fitted.calibration).save(arguments.output)
    for line in _lines(fitted, names, labels, len(failures), arguments.seed):
        print(line)
    print(f"Wrote {arguments.output}")
    if bundle.signature is not None:
        print("The signature was of the bundle as it was: sign it again (uvsdk bundle sign)")
    return 0


def _check(arguments: argparse.Namespace) -> None:
    from uvsdk.errors import SettingsError

    if arguments.as_norm and not arguments.with_cohort:
        raise SettingsError(
            "--as-norm judges scores against the people's embeddings, which then lie in the bundle: add "
            "--with-cohort if these people agree to that"
        )
    if arguments.worst_group and arguments.groups is None:
        raise SettingsError("--worst-group needs --groups CSV, which says who is in which group")


def _worst_group(fitted: Fitted, names: tuple[str, ...], labels: GroupLabels, seed: int) -> tuple[str, str]:
    """The attribute and the group whose people are most often let in as each other, at the lowest rate to be had."""
    from uvsdk.errors import SettingsError
    from uvsdk.evaluation import groups

    calibration = fitted.calibration
    # One in a hundred, where groups of thirty have false matches to count; else the lowest rate that there is.
    limit = calibration.threshold(max(0.01, calibration.strictest()), calibration.scale)
    found = groups.worst(_by_group(fitted, names, labels, limit.score, seed))
    if found is None:
        raise SettingsError(
            f"no group of the label file has {groups.SMALL_GROUP} people, so none can be said to be the worst; label "
            "more people, or leave out --worst-group"
        )
    return found[0], found[1].name


def _by_group(
    fitted: Fitted, names: tuple[str, ...], labels: GroupLabels, limit: float, seed: int
) -> tuple[Attribute, ...]:
    from uvsdk.evaluation import groups

    trials = replace(fitted.originals, subjects=names)
    return groups.measure(trials, labels, threshold=limit, resamples=_RESAMPLES, seed=seed)


def _lines(
    fitted: Fitted, names: tuple[str, ...], labels: GroupLabels | None, failures: int, seed: int
) -> Iterator[str]:
    yield f"{fitted.calibration.account}; {failures} samples could not be used"
    if fitted.note:
        yield f"No likelihood ratio: {fitted.note}"
    yield from _thresholds(fitted, names, labels, seed)
    if fitted.calibration.cohort is not None:
        cohort = fitted.calibration.cohort
        held = f"{len(cohort.embeddings):,} embeddings of {cohort.people:,} people"
        yield f"The bundle holds {held}: hand it to nobody who may not have them"


def _thresholds(fitted: Fitted, names: tuple[str, ...], labels: GroupLabels | None, seed: int) -> Iterator[str]:
    """One line for each target, and one for each group; the interval over people is there where genuine trials are."""
    from uvsdk.errors import ThresholdError

    calibration = fitted.calibration
    scale = calibration.scale
    for target in TARGETS:
        try:
            found = calibration.threshold(target, scale)
        except ThresholdError as error:
            yield f"FMR {target:<7.2%}  not supported: {error}"
            continue
        low, high = found.interval
        words = f"FMR {target:<7.2%}  {scale} threshold {found.score:.4f}  (95 % interval {low:.3%} – {high:.3%}"
        if fitted.originals.is_genuine.any():
            over = _over_people(fitted, found.score, seed)
            words += f"; over people, good samples alone, {over.value:.3%}, {over.low:.3%} – {over.high:.3%}"
        yield words + ")"
        if labels is not None:
            yield from _group_lines(_by_group(fitted, names, labels, found.score, seed))


def _group_lines(attributes: tuple[Attribute, ...]) -> Iterator[str]:
    """The false match rate among the people of each group: who is like oneself is an impostor of another kind."""
    from uvsdk.evaluation import groups

    worst = groups.worst(attributes)
    for attribute in attributes:
        for group in attribute.groups:
            rate = group.fmr_within
            if rate is not None:
                mark = " (few)" if group.small else ", the worst" if worst == (attribute.name, group) else ""
                yield (
                    f"  within {attribute.name} {group.name}, {group.people} people{mark}: {rate.value:.3%}, "
                    f"{rate.low:.3%} – {rate.high:.3%} over people, {rate.trials:,} trials"
                )


def _over_people(fitted: Fitted, limit: float, seed: int) -> Interval:
    """The false match rate of the original samples, with the interval of drawing other people."""
    from uvsdk.evaluation import bootstrap, metrics

    def rate(points: metrics.Curve) -> float:
        return metrics.at_threshold(points, limit).fmr

    return bootstrap.intervals(fitted.originals, {"fmr": rate}, resamples=_RESAMPLES, seed=seed)["fmr"]


COMMAND = Command("calibrate", "measure impostor scores and fit a likelihood ratio, into a bundle", configure, run)
