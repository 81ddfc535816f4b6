"""``uvsdk cohort``: features of public or consenting people, made once and handed to a server."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncConnection

from uvsdk.errors import SampleError, SettingsError
from uvsdk.federation.messages import TrainingConfig
from uvsdk.federation.round import Method
from uvsdk.release.cohort import LIMIT_BYTES, MOST_ROWS, FeatureCohort
from uvsdk_server.beside import date, in_database, print_table, settings_of
from uvsdk_server.calibrations import open_base
from uvsdk_server.clocks import wall_clock
from uvsdk_server.cohorts import open_cohort, put_cohort, seal_cohort
from uvsdk_server.keys import KeyFolder
from uvsdk_server.store import audit, ledger
from uvsdk_server.store.blobs import Blobs


def configure(parser: argparse.ArgumentParser) -> None:
    """Its arguments."""
    parser.add_argument("--data", type=Path, help="the server's data folder; not for make")
    actions = parser.add_subparsers(dest="action", required=True, metavar="make|add|show|remove")
    make = actions.add_parser("make", help="features of a folder of people, one subfolder each; needs no server")
    make.add_argument("folder", type=Path, metavar="PEOPLE", help="people who agreed, or whose recordings are public")
    make.add_argument("-m", "--model", type=Path, required=True, help="a bundle of the deployment")
    make.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="cohort.uvc")
    make.add_argument("--source", help="whose they are, and by whose leave; kept with them")
    make.add_argument("--samples", type=int, default=5, help="of each person at most (5)")
    add = actions.add_parser("add", help="hand a cohort to the server, in place of the one it has")
    add.add_argument("file", type=Path, metavar="FILE", help="made by `uvsdk cohort make`")
    actions.add_parser("show", help="what the server has")
    actions.add_parser("remove", help="have the server forget it")


def run(arguments: argparse.Namespace) -> int:
    """Do it, and print what is then."""
    if arguments.action == "make":
        _make(arguments)
    elif arguments.action == "add":
        _add(arguments)
    else:
        _look(arguments)
    return 0


def _make(arguments: argparse.Namespace) -> None:
    from uvsdk import modality
    from uvsdk.bundle import Bundle
    from uvsdk.commands.evaluate import find_people
    from uvsdk.modality import Capture

    if arguments.samples < 1:
        raise SettingsError("--samples is 1 or more")
    bundle = Bundle.open(arguments.model)
    reader, capture = modality.get(bundle.manifest.modality), Capture(quality="off")
    people = find_people(arguments.folder, arguments.samples)
    features, person, failures = [], [], 0
    for index, someone in enumerate(people):
        for path in someone.enrol:
            try:
                features.append(reader.prepare(path.read_bytes(), bundle, capture=capture).features)
            except SampleError as error:
                failures += 1
                print(f"left out {path.name}: {error}")
                continue
            except OSError as error:
                raise SettingsError(f"cannot read {path}: {error.strerror}") from error
            person.append(index)
    if len(features) > MOST_ROWS:
        raise SettingsError(f"{len(features)} samples, at most {MOST_ROWS} are of use; take fewer of each (--samples)")
    source = arguments.source or f"{len(set(person))} people of {arguments.folder.name}"
    name = bundle.manifest.modality
    cohort = FeatureCohort.of(features, person, modality=name, source=source, now=wall_clock())
    cohort.embedded(bundle)  # what no server could embed is noticed here
    try:
        arguments.output.write_bytes(cohort.to_bytes())
    except OSError as error:
        raise SettingsError(f"cannot write {arguments.output}: {error.strerror}") from error
    print(f"{len(features)} samples of {cohort.people} people, {failures} left out; wrote {arguments.output}")


def _add(arguments: argparse.Namespace) -> None:
    try:
        if arguments.file.stat().st_size > LIMIT_BYTES:
            raise SettingsError(f"{arguments.file} has more than {LIMIT_BYTES} bytes, so it is no cohort")
        cohort = FeatureCohort.from_bytes(arguments.file.read_bytes())
    except OSError as error:
        raise SettingsError(f"cannot read {arguments.file}: {error.strerror}") from error
    data = settings_of(data=arguments.data).data
    files, blobs = KeyFolder(data / "keys"), Blobs(data / "blobs")

    impostors = ""

    async def add(connection: AsyncConnection) -> str | None:
        nonlocal impostors
        trained = await ledger.deployment_row(connection)
        assert trained is not None  # the folder is a server's
        impostors = Method.of(TrainingConfig.from_json(trained.config)).impostors
        base = await asyncio.to_thread(open_base, blobs.read(trained.base_blob), files.at_rest)
        cohort.embedded(base)
        blob = await asyncio.to_thread(blobs.write, seal_cohort(cohort, files.at_rest))
        return await put_cohort(connection, blob, len(cohort.person), now=wall_clock(), by=audit.COMMAND)

    blobs.remove(in_database(arguments.data, add))
    print(f"{len(cohort.person)} samples of {cohort.people} people: {cohort.source}")
    if impostors != "cohort":
        print(
            f"nothing is scored against it: this deployment evaluates by {impostors!r}; a deployment that begins with "
            "evaluation = 'cohort' in its training configuration does"
        )


def _look(arguments: argparse.Namespace) -> None:
    data = settings_of(data=arguments.data).data
    files, blobs = KeyFolder(data / "keys"), Blobs(data / "blobs")

    async def found(connection: AsyncConnection) -> str | None:
        trained = await ledger.deployment_row(connection)
        return None if trained is None else trained.cohort_blob

    async def remove(connection: AsyncConnection) -> str | None:
        return await put_cohort(connection, None, 0, now=wall_clock(), by=audit.COMMAND)

    blob = in_database(arguments.data, found)
    if blob is None:
        print("the server has no cohort")
    elif arguments.action == "remove":
        blobs.remove(in_database(arguments.data, remove))
        print("the server has forgotten its cohort")
    else:
        cohort = open_cohort(blobs.read(blob), files.at_rest)
        print_table(
            [
                ("modality", cohort.modality),
                ("samples", str(len(cohort.person))),
                ("people", str(cohort.people)),
                ("source", cohort.source),
                ("made", date(cohort.made_unix_s)),
            ]
        )
