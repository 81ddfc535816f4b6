"""Devices that register, and the users they stand for: joining, templates, leaving."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from sqlalchemy import case, delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from uvsdk.errors import TemplateFormatError, UpdateRejectedError, WireError
from uvsdk.federation.guards import check_samples, check_unit_vector
from uvsdk.federation.messages import Admission, TemplateUpload
from uvsdk.privacy.key_rotation import Rotation
from uvsdk.records.codec import pack, unpack
from uvsdk.rest.problems import Problem
from uvsdk.templates.template import Template
from uvsdk_server import tokens
from uvsdk_server.keys import KeyFolder
from uvsdk_server.seals import seal_of
from uvsdk_server.store import audit, evaluations, ledger, roster
from uvsdk_server.store.database import Database
from uvsdk_server.store.roster import DeviceRow, State
from uvsdk_server.store.rows import TemplateRow, every
from uvsdk_server.store.schema import devices, models, templates, users
from uvsdk_server.tokens import Bearer

DEVICE_ID_DIGITS: Final = 32
MARK_DIGITS: Final = 12
"""Of the mark under which the audit log tells of a device of a person."""

_TEMPLATES: Final = 16
"""Templates of one user that are kept at most, of as many calibrations and models: more than there are releases."""


@dataclass(frozen=True, slots=True)
class Device:
    """A registered device that signed the request at hand.

    ``former_signing_key`` is the one before: what was sealed under it still comes from this device.
    """

    device_id: str
    user: str
    state: State
    signing_key: Ed25519PublicKey
    sealing_key: X25519PublicKey
    former_signing_key: Ed25519PublicKey | None = None

    @property
    def actor(self) -> str:
        """As the audit log names it: the person is the entry's subject."""
        return audit.DEVICE


@dataclass(frozen=True, slots=True)
class Registration:
    """A device that asks to be known: raw public keys of 32 bytes, and an enrolment token."""

    token: str
    user: str
    signing_key: bytes
    sealing_key: bytes

    @property
    def device_id(self) -> str:
        """First 32 hexadecimal digits of the SHA-256 of the signing key that the device registers with."""
        return hashlib.sha256(self.signing_key).hexdigest()[:DEVICE_ID_DIGITS]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a message stands in the order in which its device made them."""

    device_id: str
    number: int


class People:
    """Rows of users and devices. Leaving is :class:`uvsdk_server.deletions.Deletions`, for it touches rounds."""

    def __init__(
        self,
        database: Database,
        keys: KeyFolder,
        *,
        modality: str,
        dimension: int,
        devices_per_user: int,
        dismissed: Callable[[frozenset[str]], None],
        evaluates: Callable[[str, int], bool],
    ) -> None:
        """``dismissed`` is told of devices that no longer train; ``evaluates`` draws whether a user, while so many
        train, never does."""
        self._evaluates = evaluates
        self._database = database
        self._keys = keys
        self._dismissed = dismissed
        self._modality = modality
        self._dimension = dimension
        self._devices_per_user = devices_per_user

    async def expect(self, asked: Registration, now: float) -> bool:
        """Whether the device is known already; one that is not must show a token that is valid.

        Only reads, for anybody may ask. Raises :class:`Problem` 401, 403.
        """
        async with self._database.read() as connection:
            if await roster.of_id(connection, asked.device_id) is not None:
                return True
            shown = await tokens.bearer_of(connection, asked.token, now)
        if "enrol" not in shown.scopes:
            raise Problem("forbidden", "this is not an enrolment token; ask the operator for one")
        return False

    async def register(self, asked: Registration, now: float) -> tuple[State, bool]:
        """Make the device known; gives its state, and whether it is new. Raises :class:`Problem` 401, 403, 409."""
        async with self._database.write() as connection:
            known = await roster.of_id(connection, asked.device_id)
            if known is not None:
                if (known.user, known.signing_key, known.sealing_key) != (
                    asked.user,
                    asked.signing_key,
                    asked.sealing_key,
                ):
                    raise Problem("device-exists", "this signing key is registered otherwise; make new keys")
                check_known(known.state)
                return known.state, False
            token = await tokens.spend(connection, asked.token, asked.user, now)
            state = await roster.first_state(connection, asked.user, vouched=token.user is not None)
            # Nobody's claims take the places of those whom the operator vouches for.
            counted: tuple[State, ...] = ("active",) if token.user is not None else ("unconfirmed", "pending")
            if await roster.count(connection, asked.user, counted) >= self._devices_per_user:
                raise _full(self._devices_per_user)
            if (await connection.execute(select(users.c.user).where(users.c.user == asked.user))).first() is None:
                # Before the row: a crash in between leaves a key without a user, never a user without a key.
                await asyncio.to_thread(self._keys.make_user, asked.user)
                await ledger.withdraw_removal(connection, ledger.key_path(self._keys.user_file(asked.user)))
                await connection.execute(
                    insert(users).values(user=asked.user, created=now, admitted=False, vouched=False)
                )
            await connection.execute(
                insert(devices).values(
                    device_id=asked.device_id,
                    user=asked.user,
                    signing_key=asked.signing_key,
                    sealing_key=asked.sealing_key,
                    created=now,
                    state=state,
                )
            )
            gone = frozenset[str]()
            if state == "active":
                row = await roster.of_id(connection, asked.device_id)
                assert row is not None  # inserted above
                gone = await roster.activate(connection, row)
            await note_device(
                connection,
                self._keys,
                "device-registered",
                (asked.user, asked.device_id),
                now=now,
                by=audit.DEVICE,
                state=state,
                token=token.token_id,
            )
        self._dismissed(gone)
        return state, True

    async def approve(self, device_id: str, *, by: Device | Bearer, now: float) -> None:
        """Let a device act for its user; doing it again changes nothing.

        Args:
            device_id: of the device that waits.
            by: the device of the same user that says so, or the operator, who may speak for anybody.
            now: seconds since 1970.

        Raises:
            Problem: 403, revoked; 404, no such device, or another user's; 409, one device too many.
        """
        async with self._database.write() as connection:
            row = await _found(connection, device_id, by)
            await _still(connection, by, check_active)
            gone = await approve(connection, row, self._devices_per_user, self._keys, now=now, by=by.actor)
        self._dismissed(gone)

    async def revoke(self, device_id: str, *, by: Device | Bearer, now: float) -> None:
        """Take a device's rights, by itself or as above; doing it again changes nothing. Raises :class:`Problem`."""
        itself = isinstance(by, Device) and by.device_id == device_id
        async with self._database.write() as connection:
            row = await _found(connection, device_id, by)
            await _still(connection, by, check_known if itself else check_active)
            gone = await revoke(connection, row, self._keys, now=now, by=by.actor)
        self._dismissed(gone)

    async def rotate(self, device: Device, rotation: Rotation, now: float) -> None:
        """Put new keys in place of a device's at ``now``; the envelopes it sealed before are still its own.

        Raises :class:`Problem` 409 where the keys have been replaced since the request was signed.
        """
        async with self._database.write() as connection:
            moved = await connection.execute(
                update(devices)
                .where(devices.c.device_id == device.device_id, devices.c.signing_key == rotation.former)
                .values(
                    signing_key=rotation.signing,
                    sealing_key=rotation.sealing,
                    former_signing_key=rotation.former,
                )
            )
            if moved.rowcount == 0:
                raise Problem("keys-replaced", "this device's keys were replaced meanwhile; read them anew")
            whose = (device.user, device.device_id)
            await note_device(connection, self._keys, "device-keys-replaced", whose, now=now, by=device.actor)

    async def devices(
        self, *, user: str | None = None, state: State | None = None, after: str = "", limit: int | None = None
    ) -> Sequence[DeviceRow]:
        """Rows of devices, sorted by id."""
        async with self._database.read() as connection:
            return await roster.list_devices(connection, user=user, state=state, after=after, limit=limit)

    async def admit(self, admission: Admission, place: Place) -> None:
        """Keep an admission that the algorithm takes until the next round. Raises :class:`Problem` 401, 409.

        The first one draws whether its user trains. Of one who only evaluates, nothing but the number of samples stays.
        """
        own = await seal_of(admission.user, self._keys, self._database)
        sealed = own.seal(pack(admission), f"admission/{admission.user}")
        async with self._database.write() as connection:
            await _advance(connection, place, check_trains)
            evaluates = await evaluations.role(connection, admission.user)
            if evaluates is None:
                evaluates = self._evaluates(admission.user, await evaluations.trainers(connection))
            await connection.execute(
                update(users)
                .where(users.c.user == admission.user)
                .values(
                    evaluates=evaluates,
                    admission_sealed=None if evaluates else sealed,
                    anew=users.c.anew & (not evaluates),
                    admitted=True,
                    # The number that weighs its updates is fixed by the first admission, until the user leaves.
                    samples=case((users.c.admitted, users.c.samples), else_=admission.samples),
                )
            )

    async def keep_template(self, upload: TemplateUpload, user: str, place: Place, now: float) -> None:
        """Store a template beside those of other models and calibrations: whoever is verified by a former release
        still is, and a roll-back finds what it needs. Those of models that are gone go now.

        Raises :class:`Problem`, ``UpdateRejectedError``.
        """
        check_user(upload.user, user)
        template = self._read(upload)
        check_samples(template.samples)
        check_unit_vector(template.embedding, self._dimension)
        own = await seal_of(user, self._keys, self._database)
        sealed = own.seal(pack(upload), f"template/{user}/{upload.model_version}")
        row = TemplateRow(user, upload.model_version, _calibration_of(template), sealed, now)
        async with self._database.write() as connection:
            await _advance(connection, place, check_active)
            await _put_template(connection, row)

    def _read(self, upload: TemplateUpload) -> Template:
        try:
            template = Template.from_plain_bytes(upload.template, upload.model_version)
        except TemplateFormatError as error:
            raise UpdateRejectedError(str(error)) from error
        limit = template.threshold
        if template.modality != self._modality:
            raise UpdateRejectedError(f"the template is of {template.modality}, this deployment of {self._modality}")
        if limit is not None and limit.model_version not in ("", template.model_version):
            raise UpdateRejectedError("the template's threshold was measured with another model; make it again")
        return template

    async def templates(self, user: str) -> list[TemplateRow]:
        """What devices of a user have left here, newest first. Raises :class:`Problem` 404 where that is nothing."""
        query = select(templates).where(templates.c.user == user).order_by(templates.c.received.desc())
        async with self._database.read() as connection:
            rows = await every(connection, TemplateRow, query)
        if not rows:
            raise Problem("unknown-user", "nobody of that id has a template here; enrol first")
        return rows

    async def template(self, row: TemplateRow) -> Template:
        """A template, as the device has it. Raises :class:`Problem` 401, 409."""
        own = await seal_of(row.user, self._keys, self._database)
        data = own.open(row.sealed, f"template/{row.user}/{row.model_version}")
        try:
            return self._read(unpack(TemplateUpload, data))
        except (WireError, UpdateRejectedError) as error:
            # An older version kept the bare vector, by which the device and the server would decide differently.
            raise Problem(
                "template-outdated",
                "the template was kept by an older version, without its conditions and threshold; its device must "
                "renew it",
            ) from error


def _calibration_of(template: Template) -> str:
    """Digest of the calibration that its threshold was read from; empty where it names none."""
    return "" if template.threshold is None else template.threshold.calibration


async def _put_template(connection: AsyncConnection, row: TemplateRow) -> None:
    mine = templates.c.user == row.user
    same = (templates.c.model_version == row.model_version) & (templates.c.calibration == row.calibration)
    # One that names no calibration is of any, and so was this one's predecessor.
    before = (templates.c.model_version == row.model_version) & (templates.c.calibration == "")
    gone = templates.c.model_version.not_in(select(models.c.model_version))
    await connection.execute(delete(templates).where(mine, same | before | gone))
    await connection.execute(insert(templates).values(**asdict(row)))
    query = select(templates.c.model_version, templates.c.calibration).where(mine)
    for version, calibration in (await connection.execute(query.order_by(templates.c.received.desc()))).all()[
        _TEMPLATES:
    ]:
        surplus = (templates.c.model_version == version) & (templates.c.calibration == calibration)
        await connection.execute(delete(templates).where(mine, surplus))


def check_known(state: State) -> None:
    """Raise :class:`Problem` 403 for a device whose rights were taken."""
    if state == "revoked":
        raise Problem("revoked-device", "this device was revoked; register it anew, with new keys and a new token")


def check_trains(state: State) -> None:
    """Raise :class:`Problem` 403 unless a device in ``state`` takes part."""
    check_known(state)
    if state == "pending":
        raise Problem(
            "pending-device",
            "this device waits for an approval: by another device of the same person, or by the operator",
        )


def check_active(state: State) -> None:
    """Raise :class:`Problem` 403 unless somebody has vouched for a device in ``state``."""
    check_trains(state)
    if state != "active":
        raise Problem(
            "unconfirmed-device",
            "this device was registered with a token for anybody, so it trains only; the operator approves it "
            "(`uvsdk devices approve`), or makes a token for this person",
        )


async def approve(
    connection: AsyncConnection, row: DeviceRow, limit: int, keys: KeyFolder, *, now: float, by: str
) -> frozenset[str]:
    """Activate a device that waits; gives those that no longer train.

    Args:
        connection: in a transaction that writes.
        row: the device.
        limit: active devices that a person may have.
        keys: give the marks of the audit log.
        now: seconds since 1970.
        by: who says so, as the audit log names them.

    Raises:
        Problem: 403, it was revoked; 409, one device too many.
    """
    if row.state == "revoked":
        raise Problem("revoked-device", "a device that was revoked stays so; it registers anew, with new keys")
    if row.state == "active":
        return frozenset()
    if await roster.count(connection, row.user, ("active",)) >= limit:
        raise _full(limit)
    gone = await roster.activate(connection, row)
    await note_device(connection, keys, "device-approved", (row.user, row.device_id), now=now, by=by)
    return gone


async def revoke(
    connection: AsyncConnection, row: DeviceRow, keys: KeyFolder, *, now: float, by: str
) -> frozenset[str]:
    """Take a device's rights for good; gives those that no longer train. Arguments as of :func:`approve`."""
    gone = await roster.revoke(connection, row)
    if row.state != "revoked":
        await note_device(connection, keys, "device-revoked", (row.user, row.device_id), now=now, by=by)
    return gone


async def note_device(
    connection: AsyncConnection,
    keys: KeyFolder,
    action: audit.Action,
    whose: tuple[str, str],
    *,
    now: float,
    by: str,
    **detail: str,
) -> None:
    """Have the audit log tell of a device, ``whose`` user and id are given; both by marks."""
    user, device_id = whose
    device = keys.mark(user, device_id)[:MARK_DIGITS]
    await audit.append(connection, now, by, action, subject=keys.mark(user), device=device, **detail)


async def _still(connection: AsyncConnection, by: Device | Bearer, check: Callable[[State], None]) -> None:
    """Look at a device's state once more: it may have been revoked since its request was signed."""
    if isinstance(by, Device):
        row = await roster.of_id(connection, by.device_id)
        check("revoked" if row is None else row.state)


async def _found(connection: AsyncConnection, device_id: str, by: Device | Bearer) -> DeviceRow:
    row = await roster.of_id(connection, device_id)
    if row is None or (isinstance(by, Device) and row.user != by.user):
        raise Problem("no-such-device", "there is no such device of this person; list them with GET /v1/devices")
    return row


def _full(limit: int) -> Problem:
    return Problem("too-many-devices", f"a person has at most {limit} devices here; revoke one of them first")


async def _advance(connection: AsyncConnection, place: Place, check: Callable[[State], None]) -> None:
    """Take the next message of a device, in the caller's transaction. Raises :class:`Problem` 401, 403, 409.

    ``check`` sees the device's state once more: it may have been revoked since the request was signed.
    """
    mine = devices.c.device_id == place.device_id
    moved = await connection.execute(
        update(devices).where(mine, devices.c.last_number < place.number).values(last_number=place.number)
    )
    if moved.rowcount == 0:
        if await roster.of_id(connection, place.device_id) is None:
            raise Problem("unknown-device", "the device was removed while this was received")
        raise Problem("out-of-order", "a later message of this device has arrived before; make this one anew")
    row = await roster.of_id(connection, place.device_id)
    assert row is not None  # updated above
    check(row.state)


def check_user(claimed: str, user: str) -> None:
    """Raise :class:`Problem` 403 where a sealed message names another user than the address."""
    if claimed != user:
        raise Problem("forbidden", "the sealed message is for another user than the address")
