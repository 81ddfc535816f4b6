"""``uvsdk calibrate``: measure impostor scores on a folder of people and fit a likelihood ratio, into a bundle."""

from __future__ import annotations

import argparse
import calendar
import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from uvsdk.cli import Command

if TYPE_CHECKING:
    from uvsdk.evaluation.bootstrap import Interval
    from uvsdk.evaluation.calibrating import Fitted

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
    from uvsdk.errors import SettingsError
    from uvsdk.evaluation import calibrating
    from uvsdk.evaluation.observations import observe
    from uvsdk.modality import get

    if arguments.as_norm and not arguments.with_cohort:
        raise SettingsError(
            "--as-norm judges scores against the people's embeddings, which then lie in the bundle: add "
            "--with-cohort if these people agree to that"
        )
    bundle = Bundle.open(arguments.bundle)
    people = find_people(arguments.folder, arguments.enrol)
    seen, failures = observe(people, bundle, worse=not arguments.no_copies, seed=arguments.seed)
    words = arguments.source or f"{seen.people} people, {arguments.enrol} enrolment samples each"
    fitted = calibrating.fit(
        seen,
        model_version=bundle.version,
        source=words,
        as_norm=arguments.as_norm,
        keep_cohort=arguments.with_cohort,
        directions=get(bundle.manifest.modality).directions,
        seed=arguments.seed,
        now=calendar.timegm(arguments.date.timetuple()) * 1.0,
    )
    bundle.with_calibration(fitted.calibration).save(arguments.output)
    print(f"{fitted.calibration.account}; {len(failures)} samples could not be used")
    if fitted.note:
        print(f"No likelihood ratio: {fitted.note}")
    for line in _thresholds(fitted, arguments.seed):
        print(line)
    if fitted.calibration.cohort is not None:
        cohort = fitted.calibration.cohort
        held = f"{len(cohort.embeddings):,} embeddings of {cohort.people:,} people"
        print(f"The bundle holds {held}: hand it to nobody who may not have them")
    print(f"Wrote {arguments.output}")
    if bundle.signature is not None:
        print("The signature was of the bundle as it was: sign it again (uvsdk bundle sign)")
    return 0


def _thresholds(fitted: Fitted, seed: int) -> list[str]:
    """One line for each target; the interval over people is there where genuine trials are."""
    from uvsdk.errors import ThresholdError

    calibration, lines = fitted.calibration, []
    scale = calibration.scale
    for target in TARGETS:
        try:
            found = calibration.threshold(target, scale)
        except ThresholdError as error:
            lines.append(f"FMR {target:<7.2%}  not supported: {error}")
            continue
        low, high = found.interval
        words = f"FMR {target:<7.2%}  {scale} threshold {found.score:.4f}  (95 % interval {low:.3%} – {high:.3%}"
        if fitted.originals.is_genuine.any():
            over = _over_people(fitted, found.score, seed)
            words += f"; over people, good samples alone, {over.value:.3%}, {over.low:.3%} – {over.high:.3%}"
        lines.append(words + ")")
    return lines


def _over_people(fitted: Fitted, limit: float, seed: int) -> Interval:
    """The false match rate of the original samples, with the interval of drawing other people."""
    from uvsdk.evaluation import bootstrap, metrics

    def rate(points: metrics.Curve) -> float:
        return metrics.at_threshold(points, limit).fmr

    return bootstrap.intervals(fitted.originals, {"fmr": rate}, resamples=_RESAMPLES, seed=seed)["fmr"]


COMMAND = Command("calibrate", "measure impostor scores and fit a likelihood ratio, into a bundle", configure, run)
