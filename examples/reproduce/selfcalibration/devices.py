"""Devices of several people, one after another, in a process of its own; started by ``deployment.py``.

Reads a line of JSON from standard input, :class:`Job`, and prints a line for each person, :class:`Told`. Each person
has a store of their own, and everything that the server learns of them goes over its socket.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from uvsdk.enroll import enroll
from uvsdk.errors import EnrolmentError
from uvsdk.modality import Capture
from uvsdk_device import EncryptedStore, Federation
from uvsdk_device.wrapping import ScryptCost

PASSPHRASE = "of a laboratory"
QUICK = ScryptCost(n=2**12)
"""Opening a hundred stores several times each need not cost what guessing a passphrase shall."""

FMR = 0.01
CAPTURE = Capture(quality="off", faces="largest")
"""Short clips and grey portraits are what is measured here, so nothing is refused for them."""

Step = Literal["enrol", "take part"]


@dataclass(frozen=True, slots=True)
class Owner:
    """One person: an id, an enrolment token, and the files to enrol with (none where that was done)."""

    name: str
    token: str
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Job:
    """What the devices of ``owners`` are to do, one after another."""

    step: Step
    url: str
    pepper_file: str
    model: str
    folder: str
    owners: tuple[Owner, ...]

    @classmethod
    def of(cls, line: str) -> Job:
        """Of a line of JSON."""
        values = json.loads(line)
        owners = tuple(Owner(item["name"], item["token"], tuple(item["files"])) for item in values.pop("owners"))
        return cls(**values, owners=owners)


@dataclass(frozen=True, slots=True)
class Told:
    """What became of it on one device.

    Args:
        name: the person.
        state: of the enrolment (``trained``, ``joined``, ``queued``, ``pending``, or ``not enrolled``); of taking part
            what the last evaluation became, empty where none asked.
        samples: that made the template, or stand behind the report.
        releases: what became of each release that the device was shown: its number and ``adopted`` or ``refused``.
        detail: in words, where something failed.
    """

    name: str
    state: str
    samples: int = 0
    releases: tuple[tuple[int, str], ...] = ()
    detail: str = ""


def main() -> None:
    """Do one job."""
    job = Job.of(sys.stdin.readline())
    for told in (_enrolled if job.step == "enrol" else _taken_part)(job):
        print(json.dumps(asdict(told)), flush=True)


def store_of(folder: Path, name: str) -> EncryptedStore:
    """The store of one person's device."""
    return EncryptedStore.open(folder / name, passphrase=PASSPHRASE, cost=QUICK)


def _federation(job: Job, owner: Owner) -> Federation:
    pepper = Path(job.pepper_file).read_bytes()
    return Federation(job.url, enrolment_token=owner.token, pepper=pepper, server_verification=True)


def _enrolled(job: Job) -> Iterator[Told]:
    for owner in job.owners:
        store = store_of(Path(job.folder), owner.name)
        try:
            found = enroll(
                owner.name,
                owner.files,
                model=job.model,
                store=store,
                federation=_federation(job, owner),
                fmr=FMR,
                capture=CAPTURE,
            )
        except EnrolmentError as error:
            yield Told(owner.name, "not enrolled", detail=str(error))
            continue
        assert found.participation is not None  # there is a federation
        yield Told(owner.name, found.participation.state, found.template.samples, detail=found.participation.detail)


def _taken_part(job: Job) -> Iterator[Told]:
    for owner in job.owners:
        answered: list[tuple[str, int, str]] = []
        seen: list[tuple[int, str, str]] = []
        _federation(job, owner).participate(
            owner.name,
            store_of(Path(job.folder), owner.name),
            until_finished=False,
            evaluated=lambda done, answered=answered: answered.append((done.state, done.samples, done.detail)),
            released=lambda report, seen=seen: seen.append((report.number, report.state, report.detail)),
        )
        state, samples, detail = answered[-1] if answered else ("", 0, "")
        words = "; ".join(part for part in (detail, *(reason for _, _, reason in seen)) if part)
        yield Told(owner.name, state, samples, tuple((number, word) for number, word, _ in seen), words)


if __name__ == "__main__":
    main()
