"""One person's device, as a process of its own: enrols, takes part in training over HTTP, verifies offline."""

from __future__ import annotations

import multiprocessing.connection
import os
import signal
import threading
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

from uvsdk import Bundle, enroll
from uvsdk.errors import UvsdkError
from uvsdk.templates.attempts import RetryPolicy
from uvsdk.training.participation import find_trainer
from uvsdk_device import EncryptedStore, Federation, Runtime
from uvsdk_device.releases import ReleaseReport, read_standing
from uvsdk_device.rounds import RoundReport

FMR = 0.01
"""Named on devices and server alike: some hundred sentences of twenty people are too few for the strictest rate that
the trials measure, which is what they would decide at by default."""

MOST_FAILURES = 1000
"""The same few people are tried again after every release, impostors too, which no device would let pass."""
_RETRY = RetryPolicy(
    free_failures=MOST_FAILURES, disabled_at=MOST_FAILURES, per_hour=MOST_FAILURES, per_day=MOST_FAILURES
)


@dataclass(frozen=True, slots=True)
class Join:
    """Enrol, and join one deployment."""

    deployment: str
    url: str
    enrolment_token: str
    pepper: bytes
    model: Path
    server_verification: bool


@dataclass(frozen=True, slots=True)
class TakePart:
    """Take part in a deployment's rounds, evaluations and releases from now on, until its training rests."""

    deployment: str


@dataclass(frozen=True, slots=True)
class TellProgress:
    """Tell of what came of :class:`TakePart` so far; the answer is a :class:`Progress`."""


@dataclass(frozen=True, slots=True)
class Adopt:
    """Look for a release now and not at the next contact; the answer is the number of the one that verifies here."""

    deployment: str


@dataclass(frozen=True, slots=True)
class VerifyOffline:
    """Verify a recording or image on the device, by the release it has adopted and without the server."""

    probe: bytes


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Have the server of a deployment forget the person; the enrolment on the device stays."""

    deployment: str


@dataclass(frozen=True, slots=True)
class Forget:
    """Delete the person, on the server and then on the device."""

    deployment: str


@dataclass(frozen=True, slots=True)
class TellTime:
    """Tell the processor seconds this device has taken."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End the process."""


@dataclass(frozen=True, slots=True)
class Failed:
    """What went wrong in a device process."""

    reason: str


@dataclass(frozen=True, slots=True)
class Progress:
    """A device's part in one training so far.

    Args:
        rounds: it was selected for.
        refusals: why some of its updates did not count.
        refused_releases: why it did not switch to some releases.
        finished: training rests, and this device has the last release.
    """

    rounds: int = 0
    refusals: tuple[str, ...] = ()
    refused_releases: tuple[str, ...] = ()
    finished: bool = False


Order = Join | TakePart | TellProgress | Adopt | VerifyOffline | Withdraw | Forget | TellTime | Stop


@dataclass(slots=True)
class Participation:
    """Taking part, in a thread of its own: whoever holds the device verifies meanwhile."""

    thread: threading.Thread
    rounds: list[RoundReport] = field(default_factory=list)
    releases: list[ReleaseReport] = field(default_factory=list)
    failure: str = ""

    def progress(self) -> Progress:
        """So far. Raises :class:`RuntimeError` where it has failed."""
        if self.failure:
            raise RuntimeError(self.failure)
        return Progress(
            len(self.rounds),
            tuple(report.detail for report in self.rounds if report.state != "uploaded"),
            tuple(f"release {report.number}: {report.detail}" for report in self.releases if report.detail),
            not self.thread.is_alive(),
        )


class Device:
    """What a device keeps between orders: its encrypted store, and a connection for each deployment it joined."""

    def __init__(self, name: str, samples: tuple[Path, ...], folder: Path) -> None:
        self._name = name
        self._samples = samples
        self._store = EncryptedStore.open(folder, passphrase=f"demonstration of {name}")
        self._federations: dict[str, Federation] = {}
        self._model: Bundle | None = None
        self._participation: Participation | None = None

    def answer(self, order: Order) -> object:
        """Carry out one order and give what the demonstration wants to know of it."""
        match order:
            case Join():
                self._join(order)
            case TakePart(deployment):
                self._take_part(self._federations[deployment])
            case TellProgress():
                return Progress() if self._participation is None else self._participation.progress()
            case Adopt(deployment):
                self._federations[deployment].follow_release(self._name, self._store)
                return self._adopted()
            case VerifyOffline(probe):
                try:
                    return self._runtime().verify(self._name, probe)
                except UvsdkError as error:  # deleted, or a probe that is of no use: shown as it is
                    return error
            case Withdraw(deployment):
                self._federations[deployment].withdraw(self._name, self._store)
            case Forget(deployment):
                self._federations[deployment].forget(self._name, self._store)
            case TellTime():
                return time.process_time()
        return None

    @property
    def takes_part(self) -> bool:
        """Whether a round or an evaluation may be under way."""
        return self._participation is not None and self._participation.thread.is_alive()

    def _runtime(self) -> Runtime:
        return Runtime(self._store, retry=_RETRY)

    def _adopted(self) -> int:
        modality = self._store.template(self._name).modality
        return next((signed.release.number for signed in read_standing(self._store, modality).adopted), 0)

    def _join(self, order: Join) -> None:
        federation = Federation(
            order.url,
            enrolment_token=order.enrolment_token,
            pepper=order.pepper,
            trainer=find_trainer(),
            server_verification=order.server_verification,
            fmr=FMR,
        )
        self._federations[order.deployment] = federation
        self._model = Bundle.open(order.model)
        if self._store.users():
            federation.take_part(self._name, model=self._model, store=self._store)
        else:
            # Enrolled once, and verifiable from here on; every further deployment trains from the stored features.
            enroll(
                self._name, list(self._samples), model=self._model, store=self._store, federation=federation, fmr=FMR
            )

    def _take_part(self, federation: Federation) -> None:
        def run() -> None:
            try:
                federation.participate(
                    self._name,
                    self._store,
                    model=self._model,
                    progress=found.rounds.append,
                    released=found.releases.append,
                )
            except Exception:  # noqa: BLE001 - the parent must learn of any failure, whatever it is
                found.failure = traceback.format_exc()

        found = self._participation = Participation(threading.Thread(target=run, daemon=True))
        found.thread.start()


def main(name: str, samples: tuple[Path, ...], folder: Path, orders: multiprocessing.connection.Connection) -> None:
    """Answer orders until told to stop, or until nobody is left to give any; a failure is answered too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to everybody; the parent says what to do
    # Twenty processes share two cores: a second thread in each only makes the others wait.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    device = Device(name, samples, folder)
    with orders:
        while not isinstance(order := _next(orders), Stop):
            try:
                answer = device.answer(order)
            except Exception:  # noqa: BLE001 - as above
                answer = Failed(traceback.format_exc())
            try:
                orders.send(answer)
            except OSError:
                break
    if device.takes_part:
        os._exit(0)  # it may be in the middle of a step, which nothing here can interrupt


def _next(orders: multiprocessing.connection.Connection) -> Order:
    try:
        order: Order = orders.recv()
    except (EOFError, OSError):  # the demonstration has ended
        return Stop()
    return order
