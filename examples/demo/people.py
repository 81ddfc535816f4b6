"""One person's device, as a process of its own: enrols, takes part in training over HTTP, verifies offline."""

from __future__ import annotations

import multiprocessing.connection
import os
import traceback
from dataclasses import dataclass
from pathlib import Path

from uvsdk import Bundle, enroll
from uvsdk.errors import UnknownUserError
from uvsdk.training.participation import find_trainer
from uvsdk_device import EncryptedStore, Federation, Runtime

FMR = 0.01
"""Named on devices and server alike: single syllables of twenty people are too little for the strictest rate that the
trials measure, which is what they would decide at by default."""


@dataclass(frozen=True, slots=True)
class Join:
    """Enrol and take part in one deployment until its training has finished."""

    deployment: str
    url: str
    enrolment_token: str
    pepper: bytes
    model: Path
    server_verification: bool


@dataclass(frozen=True, slots=True)
class Refresh:
    """Fetch the newest model with its calibration, and make the template again with it."""

    deployment: str


@dataclass(frozen=True, slots=True)
class VerifyOffline:
    """Verify a recording or image on the device, with the newest model and without the server."""

    deployment: str
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
class Stop:
    """End the process."""


@dataclass(frozen=True, slots=True)
class Failed:
    """What went wrong in a device process."""

    reason: str


@dataclass(frozen=True, slots=True)
class Trained:
    """A device's part in one training: rounds it was selected for, and why some of its updates did not count."""

    rounds: int
    refusals: tuple[str, ...]


Order = Join | Refresh | VerifyOffline | Withdraw | Forget | Stop


class Device:
    """What a device keeps between orders: its encrypted store, and a connection for each deployment it joined."""

    def __init__(self, name: str, samples: tuple[Path, ...], folder: Path) -> None:
        self._name = name
        self._samples = samples
        self._trainer = find_trainer()
        self._store = EncryptedStore.open(folder, passphrase=f"demonstration of {name}")
        self._federations: dict[str, Federation] = {}
        self._runtimes: dict[str, Runtime] = {}

    def answer(self, order: Order) -> object:
        """Carry out one order and give what the demonstration wants to know of it."""
        if isinstance(order, Join):
            return self._join(order)
        if isinstance(order, Refresh):
            federation = self._federations[order.deployment]
            federation.refresh_template(self._name, self._store)
            model = federation.newest_model(self._name, self._store)
            self._runtimes[order.deployment] = Runtime(self._store, model)
        if isinstance(order, VerifyOffline):
            try:
                return self._runtimes[order.deployment].verify(self._name, order.probe)
            except UnknownUserError as error:
                return error
        if isinstance(order, Withdraw):
            self._federations[order.deployment].withdraw(self._name, self._store)
        if isinstance(order, Forget):
            self._federations[order.deployment].forget(self._name, self._store)
        return None

    def _join(self, order: Join) -> Trained:
        federation = Federation(
            order.url,
            enrolment_token=order.enrolment_token,
            pepper=order.pepper,
            trainer=self._trainer,
            server_verification=order.server_verification,
            fmr=FMR,
        )
        self._federations[order.deployment] = federation
        model = Bundle.open(order.model)
        if not self._store.users():
            # Enrolled once, and verifiable from here on; every further deployment trains from the stored features.
            enroll(self._name, list(self._samples), model=model, store=self._store, federation=federation, fmr=FMR)
        rounds = federation.participate(self._name, self._store, model=model, until_finished=True)
        return Trained(len(rounds), tuple(report.detail for report in rounds if report.state != "uploaded"))


def main(name: str, samples: tuple[Path, ...], folder: Path, orders: multiprocessing.connection.Connection) -> None:
    """Answer orders until told to stop; a failure is answered too, never swallowed."""
    # Twenty processes share two cores: a second thread in each only makes the others wait.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    device = Device(name, samples, folder)
    while not isinstance(order := orders.recv(), Stop):
        try:
            orders.send(device.answer(order))
        except Exception:  # noqa: BLE001 - the parent must learn of any failure, whatever it is
            orders.send(Failed(traceback.format_exc()))
