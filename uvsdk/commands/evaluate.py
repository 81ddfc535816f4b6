"""``uvsdk evaluate``: error rates of a bundle on a folder of people, with intervals, as a table, JSON and a page."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from uvsdk.cli import Command

if TYPE_CHECKING:
    from uvsdk.evaluation.protocols import Person
    from uvsdk.evaluation.summary import Summary


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("bundle", type=Path, help="the model bundle (.uvb)")
    parser.add_argument("folder", type=Path, help="a folder for each person, or a CSV list: person,role,path")
    parser.add_argument("--enrol", type=int, default=3, metavar="N", help="enrolment samples a person (default 3)")
    parser.add_argument("--all-pairs", action="store_true", help="every sample against every other, no templates")
    parser.add_argument("--output", type=Path, metavar="DIR", help="write evaluation.json and report.html there")
    parser.add_argument("--bootstrap", type=int, default=1000, metavar="R", help="resamples of people (default 1000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the bootstrap (default 0)")


def run(arguments: argparse.Namespace) -> int:
    """Evaluate, print the table, write the files."""
    from uvsdk.bundle import Bundle
    from uvsdk.errors import SettingsError
    from uvsdk.evaluation import protocols
    from uvsdk.evaluation.summary import summarise

    if arguments.bootstrap < 1:
        raise SettingsError(f"--bootstrap is at least 1, got {arguments.bootstrap}")
    bundle = Bundle.open(arguments.bundle)
    embed = protocols.bundle_embedder(bundle)
    people = find_people(arguments.folder, arguments.enrol)
    protocol = protocols.all_pairs if arguments.all_pairs else protocols.enrol_and_verify
    summary = summarise(protocol(people, embed), resamples=arguments.bootstrap, seed=arguments.seed)
    print(_table(summary))
    if arguments.output is not None:
        _write(summary, arguments, f"{bundle.manifest.modality} bundle {bundle.manifest.backbone}", bundle.version)
    return 0


def find_people(source: Path, enrol: int) -> list[Person]:
    """People of a folder, or of a CSV list."""
    from uvsdk.evaluation import protocols

    return protocols.listed(source) if source.is_file() else protocols.folder(source, enrol=enrol)


def _table(summary: Summary) -> str:
    rows = summary.rows()
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    lines = [f"{name:<{widths[0]}}  {value:>{widths[1]}}  {interval}".rstrip() for name, value, interval in rows]
    counts = [f"{name:<{widths[0]}}  {value}" for name, value in summary.counts()]
    note = f"Intervals: 95 %, bootstrap over people, {summary.resamples} resamples, seed {summary.seed}."
    return "\n".join([*lines, "", *counts, "", note])


def _write(summary: Summary, arguments: argparse.Namespace, model: str, version: str) -> None:
    import json
    from datetime import UTC, datetime

    from uvsdk.errors import SettingsError

    try:
        from uvsdk.evaluation.pages import evaluation_page
    except ModuleNotFoundError as error:
        raise SettingsError(
            "a report needs matplotlib: pip install 'uvsdk[evaluate]', or leave out --output"
        ) from error

    protocol = " --all-pairs" if arguments.all_pairs else f" --enrol {arguments.enrol}"
    command = (
        f"uvsdk evaluate {arguments.bundle.name} {arguments.folder.name}{protocol}"
        f" --bootstrap {arguments.bootstrap} --seed {arguments.seed} --output {arguments.output.name}"
    )
    page = evaluation_page(
        summary,
        model=f"{model} ({version[:12]})",
        data=f"{arguments.folder.name}, {len(summary.outcome.trials.subjects)} people",
        command=command,
        made=datetime.now(UTC),
    )
    record = {"model_version": version, "command": command, **summary.record()}
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "evaluation.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    (arguments.output / "report.html").write_text(page, encoding="utf-8")
    print(f"\nWrote {arguments.output / 'evaluation.json'} and {arguments.output / 'report.html'}")


COMMAND = Command("evaluate", "measure a bundle on a folder of people", configure, run)
