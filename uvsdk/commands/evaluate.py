"""``uvsdk evaluate``: error rates of a bundle on people or listed pairs, with intervals; a table, JSON and a page."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from uvsdk.cli import Command

if TYPE_CHECKING:
    from uvsdk.bundle import Bundle
    from uvsdk.evaluation.acquisition import Failure, Progress
    from uvsdk.evaluation.pairs import PairList
    from uvsdk.evaluation.protocols import Person, ProtocolOutcome
    from uvsdk.evaluation.summary import Summary
    from uvsdk.modality import Capture

_SHOWN_FAILURES: Final = 10
_REPORT_EVERY_S: Final = 30.0

_SOURCE = """\
SOURCE is one of
  a folder that holds a folder of samples for each person
  a CSV list with the columns person,role,path (role: enrol or verify)
  LFW pairs (pairs.txt), with the folder of images in --root
  a trial list, lines `1 path path` and `0 path path`, plain or gzip, with the folder of files in --root;
  without labels (`path path`) it gives the file of --scores and no error rates
Which one it is shows in its first line."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _SOURCE
    parser.add_argument("bundle", type=Path, help="the model bundle (.uvb)")
    parser.add_argument("source", type=Path, metavar="SOURCE", help="people, or a list: see below")
    parser.add_argument("--root", type=Path, metavar="DIR", help="where listed paths start (default: beside the list)")
    parser.add_argument("--enrol", type=int, default=3, metavar="N", help="enrolment samples a person (default 3)")
    parser.add_argument("--all-pairs", action="store_true", help="every sample against every other, no templates")
    parser.add_argument("--groups", type=Path, metavar="CSV", help="person,ATTRIBUTE,...: error rates by group")
    parser.add_argument("--scores", type=Path, metavar="FILE", help="write `score path path` for each listed trial")
    parser.add_argument("--output", type=Path, metavar="DIR", help="write evaluation.json and report.html there")
    parser.add_argument(
        "--quality", choices=("strict", "standard", "off"), default="standard", help="what a sample must reach"
    )
    parser.add_argument("--faces", choices=("single", "largest", "only"), default="single", help="whose face is meant")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="threads that read samples (default 1)")
    parser.add_argument("--bootstrap", type=int, default=1000, metavar="R", help="resamples of people (default 1000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the bootstrap (default 0)")


def run(arguments: argparse.Namespace) -> int:
    """Evaluate, print the table, write the files."""
    from uvsdk.bundle import Bundle
    from uvsdk.errors import SettingsError
    from uvsdk.evaluation import groups
    from uvsdk.evaluation.summary import summarise
    from uvsdk.modality import Capture, get

    if arguments.bootstrap < 1:
        raise SettingsError(f"--bootstrap is at least 1, got {arguments.bootstrap}")
    bundle = Bundle.open(arguments.bundle)
    labels = None if arguments.groups is None else groups.read(arguments.groups)
    capture = Capture(quality=arguments.quality, faces=arguments.faces)
    pairs = find_pairs(arguments.source)
    if pairs is None:
        outcome: ProtocolOutcome | None = _people(arguments, bundle, capture)
    else:
        outcome = _listed(arguments, pairs, bundle, capture)
    if outcome is None:
        return 0
    summary = summarise(
        outcome,
        resamples=arguments.bootstrap,
        seed=arguments.seed,
        labels=labels,
        calibration=bundle.calibration,
        reported=get(bundle.manifest.modality).reported,
    )
    print(_table(summary))
    if arguments.output is not None:
        _write(summary, arguments, f"{bundle.manifest.modality} bundle {bundle.manifest.backbone}", bundle.version)
    return 0


def find_people(source: Path, enrol: int, *, root: Path | None = None) -> list[Person]:
    """People of a folder, or of a CSV list whose paths start at ``root``."""
    from uvsdk.evaluation import protocols

    return protocols.read_list(source, root=root) if source.is_file() else protocols.read_folder(source, enrol=enrol)


def find_pairs(source: Path) -> PairList | None:
    """The pairs of a list; ``None`` where the source is a folder or a list of people."""
    from uvsdk.evaluation import lfw, protocols, trial_lists

    if not source.is_file() or protocols.is_list_of_people(source):
        return None
    return lfw.read(source) if lfw.is_pairs(source) else trial_lists.read(source)


def _people(arguments: argparse.Namespace, bundle: Bundle, capture: Capture) -> ProtocolOutcome:
    from uvsdk.errors import SettingsError
    from uvsdk.evaluation import protocols

    if arguments.scores is not None:
        raise SettingsError("--scores is for listed trials; a folder of people has no list to write scores for")
    if arguments.root is not None and arguments.source.is_dir():
        raise SettingsError("--root is where a list's paths start; a folder of people needs none")
    people = find_people(arguments.source, arguments.enrol, root=arguments.root)
    embed = protocols.bundle_embedder(bundle, capture=capture)
    protocol = protocols.all_pairs if arguments.all_pairs else protocols.enrol_and_verify
    with _Shown() as progress:
        outcome = protocol(people, embed, jobs=arguments.jobs, progress=progress)
    _tell(outcome.failures)
    return outcome


def _listed(arguments: argparse.Namespace, pairs: PairList, bundle: Bundle, capture: Capture) -> ProtocolOutcome | None:
    """The trials of a list; ``None`` where it has no labels and its scores were all that could be had."""
    from uvsdk.errors import SettingsError
    from uvsdk.evaluation import lfw, trial_lists
    from uvsdk.evaluation.pairs import score
    from uvsdk.evaluation.protocols import bundle_embedder

    if arguments.all_pairs:
        raise SettingsError("--all-pairs is for people; a list names its pairs itself")
    if not pairs.labelled and (
        arguments.scores is None or arguments.output is not None or arguments.groups is not None
    ):
        raise SettingsError(
            f"{arguments.source.name} does not say which trials are genuine: it gives scores and no error rates; "
            "name a file with --scores, without --output and --groups"
        )
    root = arguments.root or arguments.source.parent
    if not root.is_dir():
        raise SettingsError(f"{root} is not a folder; --root is where the paths of the list start")
    with _Shown() as progress:
        scored = score(
            pairs,
            (lambda name: lfw.locate(root, name)) if lfw.is_pairs(arguments.source) else (lambda name: root / name),
            bundle_embedder(bundle, capture=capture),
            jobs=arguments.jobs,
            progress=progress,
        )
    _tell(scored.acquisition.failures)
    if arguments.scores is not None:
        missing = trial_lists.write_scores(arguments.scores, pairs, scores=scored.scores)
        print(f"Wrote {len(pairs.first) - missing:,} scores to {arguments.scores}; {missing:,} trials have none\n")
    return scored.outcome() if pairs.labelled else None


class _Shown:
    """Progress on standard error: a line that is rewritten on a terminal, else a line every half minute."""

    def __init__(self) -> None:
        self._told = time.monotonic()
        self._terminal = sys.stderr.isatty()

    def __enter__(self) -> Progress:
        return self._show

    def __exit__(self, *_: object) -> None:
        if self._terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def _show(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._told < (0.1 if self._terminal else _REPORT_EVERY_S):
            return
        self._told = now
        start, end = ("\r", "") if self._terminal else ("", "\n")
        sys.stderr.write(f"{start}{done:,} of {total:,} samples{end}")
        sys.stderr.flush()


def _tell(failures: tuple[Failure, ...]) -> None:
    """The first failures with their reasons; how many there are by reason stands in the table."""
    for failure in failures[:_SHOWN_FAILURES]:
        print(f"cannot use {failure.file}: {failure.reason}", file=sys.stderr)
    if len(failures) > _SHOWN_FAILURES:
        print(f"and {len(failures) - _SHOWN_FAILURES:,} more", file=sys.stderr)


def _table(summary: Summary) -> str:
    rows = [*summary.rows(), *summary.calibration_rows(), *_group_rows(summary)]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    lines = [f"{name:<{widths[0]}}  {value:>{widths[1]}}  {interval}".rstrip() for name, value, interval in rows]
    counts = [f"{name:<{widths[0]}}  {value}" for name, value in summary.counts()]
    note = f"Intervals: 95 %, bootstrap over people, {summary.resamples} resamples, seed {summary.seed}."
    return "\n".join([*lines, "", *counts, "", note])


def _group_rows(summary: Summary) -> list[tuple[str, str, str]]:
    """Both error rates of each group at the common threshold; the differences stand in the report."""
    from uvsdk.evaluation.summary import percent

    rows = []
    for attribute in summary.attributes:
        for group in attribute.groups:
            few = " (few)" if group.small else ""
            name = f"{attribute.name} {group.name}, {group.people} people{few}"
            for title, rate in (("FNMR", group.fnmr), ("FMR within", group.fmr_within)):
                if rate is not None:
                    rows.append(
                        (f"{name}: {title}", percent(rate.value), f"{percent(rate.low)} – {percent(rate.high)}")
                    )
    return rows


def _write(summary: Summary, arguments: argparse.Namespace, model: str, version: str) -> None:
    import json
    from datetime import UTC, datetime

    from uvsdk.errors import SettingsError
    from uvsdk.evaluation.record import as_json

    try:
        from uvsdk.evaluation.pages import evaluation_page
    except ModuleNotFoundError as error:
        raise SettingsError(
            "a report needs matplotlib: pip install 'uvsdk[evaluate]', or leave out --output"
        ) from error

    command = _command(arguments)
    page = evaluation_page(
        summary,
        model=f"{model} ({version[:12]})",
        data=f"{arguments.source.name}, {summary.people} people",
        command=command,
        made=datetime.now(UTC),
    )
    record = {"model_version": version, "command": command, **as_json(summary)}
    arguments.output.mkdir(parents=True, exist_ok=True)
    text = json.dumps(record, indent=2, allow_nan=False)
    (arguments.output / "evaluation.json").write_text(text + "\n", encoding="utf-8")
    (arguments.output / "report.html").write_text(page, encoding="utf-8")
    print(f"\nWrote {arguments.output / 'evaluation.json'} and {arguments.output / 'report.html'}")


def _command(arguments: argparse.Namespace) -> str:
    """The command again, with names in place of paths: where things lay is nobody's business in a report."""
    words = ["uvsdk evaluate", arguments.bundle.name, arguments.source.name]
    words += [f"--{name} {path.name}" for name in ("root", "groups") if (path := getattr(arguments, name)) is not None]
    if arguments.all_pairs:
        words.append("--all-pairs")
    elif arguments.source.is_dir():
        words.append(f"--enrol {arguments.enrol}")
    words += [f"--quality {arguments.quality}", f"--faces {arguments.faces}"]
    words += [f"--bootstrap {arguments.bootstrap}", f"--seed {arguments.seed}", f"--output {arguments.output.name}"]
    return " ".join(words)


COMMAND = Command("evaluate", "measure a bundle on people or on listed pairs", configure, run)
