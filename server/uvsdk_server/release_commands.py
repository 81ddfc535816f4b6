"""``uvsdk releases``: what verifies, why a candidate does not, and what an operator changes of that."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from uvsdk.errors import SettingsError
from uvsdk.federation.messages import TrainingConfig
from uvsdk.records.codec import unpack
from uvsdk.release.record import POLICIES, Calibrator, Evaluation, Release
from uvsdk.rest.problems import Problem
from uvsdk_server import monitoring
from uvsdk_server.beside import Answer, date, in_database, print_table, settings_of, storage_errors
from uvsdk_server.calibrations import open_base
from uvsdk_server.clocks import wall_clock
from uvsdk_server.deployment import check_pair, open_database
from uvsdk_server.evaluators import NOTHING, Evaluators
from uvsdk_server.keys import KeyFolder
from uvsdk_server.monitoring import Metrics
from uvsdk_server.observer import Unobserved
from uvsdk_server.releases import Candidate, Releases
from uvsdk_server.store import audit, evaluations, ledger, releases
from uvsdk_server.store.blobs import Blobs
from uvsdk_server.store.rows import ReleaseRow

_MOST = 1 << 31


def configure(parser: argparse.ArgumentParser) -> None:
    """Its arguments."""
    parser.add_argument("--data", type=Path, help="the server's data folder")
    actions = parser.add_subparsers(
        dest="action", required=True, metavar="list|show|promote|roll-back|policy|evaluate|evaluations|resume"
    )
    listing = actions.add_parser("list", help="the newest releases; * is the one that verifies")
    listing.add_argument("--limit", type=int, default=20, help="how many (20)")
    listing.add_argument("--before", type=int, metavar="NUMBER", help="only those older than this one")
    show = actions.add_parser("show", help="one release, or the candidate and why it is not released")
    show.add_argument("which", nargs="?", default="current", metavar="NUMBER|candidate", help="left out: what verifies")
    promote = actions.add_parser("promote", help="release the candidate, or another model version that is kept")
    promote.add_argument("version", metavar="VERSION|candidate", help="as `show candidate` prints it")
    roll_back = actions.add_parser("roll-back", help="release again what an earlier release was")
    roll_back.add_argument("number", type=int, nargs="?", help="of the earlier release; left out: what was before")
    actions.add_parser("evaluate", help="have the candidate evaluated as soon as no round is open")
    evaluations = actions.add_parser("evaluations", help="what the newest evaluations found, and what came of them")
    evaluations.add_argument("--limit", type=int, default=20, help="how many (20)")
    actions.add_parser("resume", help="let training go on where it has stopped by itself")
    policy = actions.add_parser("policy", help="show who releases, or be stricter than the settings")
    policy.add_argument("policy", nargs="?", choices=POLICIES, help="automatic: as the settings say")


def run(arguments: argparse.Namespace) -> int:
    """Do it, and print what is then."""
    if arguments.action in ("evaluate", "evaluations", "resume"):
        print(in_database(arguments.data, partial(_EVALUATING[arguments.action], arguments)))
        return 0
    actions: dict[str, Callable[[Releases], Awaitable[None]]] = {
        "list": lambda releases: _list(releases, arguments.limit, arguments.before),
        "show": lambda releases: _show(releases, arguments.which),
        "promote": lambda releases: _promote(releases, arguments.version),
        "roll-back": lambda releases: _roll_back(releases, arguments.number),
        "policy": lambda releases: _policy(releases, arguments.policy),
    }
    try:
        _beside(arguments.data, actions[arguments.action])
    except Problem as problem:
        raise SettingsError(problem.detail) from problem
    return 0


def _beside(data: Path | None, work: Callable[[Releases], Awaitable[Answer]]) -> Answer:
    """Do something with the releases of a server, which may run: it asks the database what is in force."""
    settings = settings_of(data=data)

    async def within() -> Answer:
        await check_pair(settings)
        database = open_database(settings)
        try:
            async with database.read() as connection:
                row = await ledger.deployment_row(connection)
            assert row is not None  # they are paired
            files, blobs, base_blob = KeyFolder(settings.data / "keys"), Blobs(settings.data / "blobs"), row.base_blob
            return await work(
                Releases.of(
                    settings,
                    database,
                    lambda: open_base(blobs.read(base_blob), files.at_rest),
                    config=TrainingConfig.from_json(row.config),
                    files=files,
                    clock=wall_clock,
                    watcher=Unobserved(),
                    metrics=Metrics(),
                    log=monitoring.logger("error"),
                )
            )
        finally:
            await database.close()

    with storage_errors():
        return asyncio.run(within())


async def _list(releases: Releases, limit: int, before: int | None) -> None:
    if not 1 <= limit < _MOST or not 1 <= (before or 1) < _MOST:
        raise SettingsError(f"--limit and --before are numbers from 1 to {_MOST - 1}")
    current = await releases.row()
    listed = await releases.list(limit, before)
    refusals = await releases.refusals(listed)
    by = await releases.calibrators()
    rows = [
        ("*" if row.number == current.number else "", *_columns(row, by[row.calibration], refusals[row.number]))
        for row in listed
    ]
    header = ("", "number", "cause", "model", "round", "calibration", "by", "FMR", "FNMR", "made", "kept", "refused by")
    print_table([header, *rows])


def _columns(row: ReleaseRow, calibrator: Calibrator, refusals: int) -> tuple[str, ...]:
    release = unpack(Release, row.record)
    measured = next(iter(release.evaluation), None)
    return (
        str(release.number),
        release.cause,
        release.model_version[:12],
        str(release.round_id),
        release.calibration[:12] or "none",
        calibrator,
        "-" if measured is None else f"{measured.fmr:.2%}",
        "-" if measured is None else f"{measured.fnmr:.1%}",
        date(release.created_unix_s),
        "yes" if row.kept else "no",
        str(refusals),
    )


async def _show(releases: Releases, which: str) -> None:
    if which == "candidate":
        _print_pairs(_candidate(await releases.candidate()))
        return
    if which != "current" and not (which.isdecimal() and 1 <= int(which) < _MOST):
        raise SettingsError(f"show a release by its number, or the candidate; {which!r} is neither")
    row = await releases.row(None if which == "current" else int(which))
    current = await releases.row()
    refusals = (await releases.refusals([row]))[row.number]
    release = unpack(Release, row.record)
    state = "verifies" if row.number == current.number else "kept" if row.kept else "its bundle is no longer kept"
    _print_pairs(
        [
            ("release", f"{release.number} of {release.deployment}: {state}"),
            ("cause", release.cause),
            ("made", date(release.created_unix_s)),
            ("in place of", str(release.replaces or "nothing")),
            ("model", release.model_version),
            ("round", str(release.round_id)),
            ("algorithm", release.algorithm),
            ("configuration", release.config_digest),
            ("bundle", release.bundle),
            ("calibration", release.calibration or "none"),
            ("calibrated by", (await releases.calibrators())[release.calibration]),
            *(await _calibrated_on(releases, row) if row.kept else ()),
            ("refused by", f"{refusals} devices"),
            *[pair for item in release.evaluation for pair in _measured(item)],
        ]
    )


async def _calibrated_on(releases: Releases, row: ReleaseRow) -> list[tuple[str, str]]:
    """Whose scores its thresholds are read from."""
    calibration = (await releases.opened(row)).bundle.calibration
    return [] if calibration is None else [("calibrated on", calibration.source)]


def _candidate(candidate: Candidate) -> list[tuple[str, str]]:
    judged = candidate.judged
    said = (
        "nothing yet" if judged is None else f"{'passes' if judged.passes else 'fails'}, {date(judged.judged_unix_s)}"
    )
    pairs = [
        ("candidate", candidate.model_version),
        ("round", str(candidate.round_id)),
        ("calibrated", "yes" if candidate.calibrated else "no"),
        ("policy", f"{candidate.policy}, held since a roll-back" if candidate.held else candidate.policy),
        ("the gate", said),
    ]
    if judged is not None:
        for item in judged.change:
            change = f"{item.change:+.1%} [{item.low:+.1%}, {item.high:+.1%}]"
            pairs.append(("change of FNMR", change))
        for measured in judged.evaluation:
            pairs += _measured(measured)
    pairs += [("not released", reason) for reason in candidate.reasons] or [("released", "it is what verifies")]
    return pairs


def _measured(item: Evaluation) -> list[tuple[str, str]]:
    return [
        ("evaluation", f"{item.evaluation_id}, {date(item.measured_unix_s)}, impostors: {item.impostors}"),
        ("people, trials", f"{item.people}, {item.trials}"),
        ("FMR", f"{item.fmr:.3%} [{item.fmr_low:.3%}, {item.fmr_high:.3%}] at the cosine {item.threshold:.3f}"),
        ("FNMR", f"{item.fnmr:.1%} [{item.fnmr_low:.1%}, {item.fnmr_high:.1%}], worst tenth {item.worst_fnmr:.1%}"),
    ]


async def _promote(releases: Releases, version: str) -> None:
    if version == "candidate":
        version = (await releases.candidate()).model_version
    _announce(await releases.promote(version, by=audit.COMMAND))


async def _roll_back(releases: Releases, number: int | None) -> None:
    _announce(await releases.roll_back(number, by=audit.COMMAND))


def _announce(release: Release) -> None:
    print(f"release {release.number} verifies: model {release.model_version[:12]}, {release.cause}")


async def _policy(releases: Releases, policy: str | None) -> None:
    chosen = next((item for item in POLICIES if item == policy), None)
    if chosen is None:
        print(await releases.policy())
    else:
        print(await releases.override(None if chosen == "automatic" else chosen, by=audit.COMMAND))


async def _evaluate(arguments: argparse.Namespace, connection: AsyncConnection) -> str:
    row = await evaluations.request(connection, "", wall_clock(), by=audit.COMMAND)
    return f"evaluation {row.evaluation_id} is {row.state}; a running server sees it within a minute"


async def _evaluations(arguments: argparse.Namespace, connection: AsyncConnection) -> str:
    if not 1 <= arguments.limit < _MOST:
        raise SettingsError(f"--limit is a number from 1 to {_MOST - 1}")
    lines = []
    for row in await evaluations.listed(connection, arguments.limit):
        came = row.outcome if row.release is None else f"{row.outcome}, release {row.release}"
        lines.append(
            f"{row.evaluation_id}  {date(row.opened)}  {row.cause}: {row.state}, {row.arrived} of {row.asked} devices, "
            f"model {row.candidate[:12] or '-'}, {came or 'not judged yet'}"
        )
        summary = json.loads(row.summary or "{}")
        lines += [f"    {reason}" for reason in summary.get("reasons", [])]
        lines += _centred(summary.get("centring"))
        lines += _returned(summary.get("training") or {})
    lines = lines or ["nothing has been evaluated yet"]
    told = await _awaited(connection)
    return "\n".join([*lines, told] if told and not any(told in line for line in lines) else lines)


async def _awaited(connection: AsyncConnection) -> str:
    """Why the next evaluation does not come, where nothing is asked or people are too few; else empty."""
    row, current = await ledger.deployment_row(connection), await releases.in_force(connection)
    if row is None or current is None:
        return ""
    config = TrainingConfig.from_json(row.config)
    found = Evaluators.of(config, await evaluations.respondents(connection))
    if not found.scored(row.cohort_blob is not None):
        return NOTHING
    if found.suffice:
        return ""
    return found.words(candidate=row.model_version != current.model_version)


def _centred(found: Mapping[str, Any] | None) -> list[str]:
    """How the released model verifies with its domain's mean and without, where that was measured."""
    if found is None or None in (found["fnmr"], found["centred_fnmr"]):
        return []
    chosen = "it is taken out" if found["chosen"] else "it stays"
    return [
        f"    with its domain's mean the released model rejects {found['fnmr']:.1%} of genuine trials at a false match "
        f"rate of {found['fmr']:g}, without {found['centred_fnmr']:.1%}: {chosen}"
    ]


def _returned(training: Mapping[str, Any]) -> list[str]:
    """What training goes on from where that is not the candidate."""
    if training.get("centred") is not None:
        return [f"    training begins with the head centred on these people: {training['centred'][:12]}"]
    version = training.get("returned_to")
    if version is None:
        return []
    return [
        f"    worse than the best so far: training went back to {version[:12]}, its step is {training['step']:g} of"
        " the configured one from then on"
    ]


async def _resume(arguments: argparse.Namespace, connection: AsyncConnection) -> str:
    stopped = await evaluations.resume(connection, wall_clock(), by=audit.COMMAND)
    return "training goes on" if stopped else "training had not stopped"


_EVALUATING: Mapping[str, Callable[[argparse.Namespace, AsyncConnection], Awaitable[str]]] = {
    "evaluate": _evaluate,
    "evaluations": _evaluations,
    "resume": _resume,
}


def _print_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    print_table(list(pairs))
