"""``uvsdk calibrate``: measure impostor scores on a folder of people and put them into a bundle."""

from __future__ import annotations

import argparse
from pathlib import Path

from uvsdk.cli import Command

TARGETS = (0.1, 0.01, 0.001, 0.0001)


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("bundle", type=Path, help="the model bundle (.uvb)")
    parser.add_argument("folder", type=Path, help="a folder for each person, or a CSV list: person,role,path")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="BUNDLE", help="the calibrated bundle")
    parser.add_argument("--enrol", type=int, default=3, metavar="N", help="enrolment samples a person (default 3)")
    parser.add_argument("--source", metavar="TEXT", help="whose samples these are, in words; kept in the bundle")


def run(arguments: argparse.Namespace) -> int:
    """Calibrate, save the bundle, say which false match rates the trials support."""
    from uvsdk.bundle import Bundle
    from uvsdk.commands.evaluate import find_people
    from uvsdk.errors import ThresholdError
    from uvsdk.evaluation import protocols
    from uvsdk.scoring import Calibration

    bundle = Bundle.open(arguments.bundle)
    outcome = protocols.impostors(find_people(arguments.folder, arguments.enrol), protocols.bundle_embedder(bundle))
    impostor = outcome.trials.impostor
    people = len(set(outcome.trials.template_subject.tolist()) | set(outcome.trials.probe_subject.tolist()))
    words = arguments.source or f"{people} people, {arguments.enrol} enrolment samples each"
    calibration = Calibration.from_scores(impostor, model_version=bundle.version, source=words)
    bundle.with_calibration(calibration).save(arguments.output)
    print(f"{len(impostor):,} impostor trials of {people} people; {len(outcome.failures)} samples could not be used")
    for target in TARGETS:
        try:
            found = calibration.threshold(target)
        except ThresholdError as error:
            print(f"FMR {target:<7.2%}  not supported: {error}")
            continue
        low, high = found.interval
        print(f"FMR {target:<7.2%}  threshold {found.score:.4f}  (95 % interval of the rate {low:.3%} – {high:.3%})")
    print(f"Wrote {arguments.output}")
    return 0


COMMAND = Command("calibrate", "measure impostor scores and put them into a bundle", configure, run)
