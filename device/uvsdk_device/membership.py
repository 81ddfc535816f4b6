"""One user's membership in one deployment: this device's keys there, and what the server was told once.

Every step can be repeated: keys are stored before the server hears of them, and the server knows them again.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from uvsdk.arrays import Array
from uvsdk.errors import (
    EdgeOnlyError,
    PendingDeviceError,
    ServerRefusedError,
    SettingsError,
    StillRegisteredError,
    WireError,
)
from uvsdk.federation.messages import Admission, Numbered, RoundHeader, TemplateUpload
from uvsdk.federation.strategy import EMBEDDED, INSTANCES, MEAN, PERSON
from uvsdk.privacy.identifiers import canonical_embedding, canonical_instance, hash_instance, hash_person, hash_user_id
from uvsdk.privacy.key_rotation import Rotation
from uvsdk.privacy.sealing import Binding, new_nonce, seal
from uvsdk.records.codec import pack
from uvsdk.records.transfer import stays_here
from uvsdk.templates.template import Template
from uvsdk_device.connection import JSON_LIMIT, Connection, Signer
from uvsdk_device.deployment import Deployment, number, text
from uvsdk_device.frozen_views import forget_frozen_views
from uvsdk_device.keystore import EncryptedStore
from uvsdk_device.memory import forget_memory
from uvsdk_device.models import Models
from uvsdk_device.reembedding import embeddings

_DEVICE = "device"
_HANDED_OVER = "handed-over"


@dataclass(frozen=True, slots=True, repr=False)
class Device:
    """This device as one server knows it, for one user.

    Args:
        signing_key: signs requests and envelopes.
        sealing_key: opens what the server seals to this device.
        registered: whether the server has acknowledged the keys.
        admitted: whether it has acknowledged the admission.
        number: of the last message about its user that this device has made.
        device_id: by which the server knows this device, whatever its keys; given by the first of them.
        made_unix_s: when the keys were made, by this device's clock.
        coming: keys that the server may know instead of these already: a replacement that has not come to its end.
    """

    signing_key: Ed25519PrivateKey
    sealing_key: X25519PrivateKey
    registered: bool = False
    admitted: bool = False
    number: int = 0
    device_id: str = ""
    made_unix_s: float = 0.0
    coming: tuple[Ed25519PrivateKey, X25519PrivateKey] | None = None

    @classmethod
    def new(cls, now: float) -> Device:
        """A device with new keys, named by the first 32 hexadecimal digits of SHA-256 of its public signing key."""
        signing = Ed25519PrivateKey.generate()
        return cls(signing, X25519PrivateKey.generate(), device_id=_named_by(signing), made_unix_s=now)

    __reduce_ex__ = stays_here("it holds private keys; read it from the store in each process")

    def to_bytes(self) -> bytes:
        """For the encrypted store only."""
        coming = [] if self.coming is None else [_base64(key.private_bytes_raw()) for key in self.coming]
        return json.dumps(
            {
                "signing_key": _base64(self.signing_key.private_bytes_raw()),
                "sealing_key": _base64(self.sealing_key.private_bytes_raw()),
                "device_id": self.device_id,
                "made_unix_s": self.made_unix_s,
                "coming": coming,
                "registered": self.registered,
                "admitted": self.admitted,
                "number": self.number,
            }
        ).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Device:
        """The inverse of :meth:`to_bytes`."""
        values = json.loads(data)
        signing, sealing = _keys_of([values["signing_key"], values["sealing_key"]])
        coming = values.get("coming")
        return cls(
            signing,
            sealing,
            registered=values["registered"],
            admitted=values["admitted"],
            number=values.get("number", 0),
            device_id=values.get("device_id") or _named_by(signing),
            made_unix_s=values.get("made_unix_s", 0.0),
            coming=_keys_of(coming) if coming else None,
        )


@dataclass(frozen=True, slots=True, repr=False)
class Membership:
    """A registered device, ready to talk: what every later step needs.

    Args:
        user_id: in clear, for the store.
        user: hashed, for the server.
        device: the keys.
        deployment: what was agreed.
        connection: signs with the device's key.
    """

    user_id: str
    user: str
    device: Device
    deployment: Deployment
    connection: Connection

    __reduce_ex__ = stays_here("it holds private keys; read it from the store in each process")

    def binding(self, message_type: str, *, round_id: int, model_version: str, algorithm: str, key_id: str) -> Binding:
        """Where a message of this device to the server belongs."""
        return Binding(
            deployment=self.deployment.name,
            direction="up",
            message_type=message_type,
            algorithm=algorithm,
            round_id=round_id,
            model_version=model_version,
            sender=self.device.device_id,
            recipient_key_id=key_id,
            nonce=new_nonce(),
        )

    def round_binding(self, message_type: str, header: RoundHeader) -> Binding:
        """The same of a message that belongs to a round."""
        return self.binding(
            message_type,
            round_id=header.round_id,
            model_version=header.model_version,
            algorithm=header.algorithm,
            key_id=header.server_key_id,
        )


def is_member(store: EncryptedStore, user_id: str) -> bool:
    """Whether any server may know this user through this device."""
    return store.holds(_DEVICE, user=user_id)


def forget_here(user_id: str, store: EncryptedStore) -> None:
    """Delete a user from this device alone, which is right only where no server may know them.

    Raises:
        StillRegisteredError: one may; nothing was deleted, because the keys that could ask it to forget the person
            would be gone.
        UnknownUserError: not enrolled here.
    """
    with store.lock():
        if is_member(store, user_id):
            raise StillRegisteredError(
                "a server may know this person through this device, and only this device's keys can make it forget "
                "them, so nothing was deleted; name that server (--server) and try again"
            )
        store.delete(user_id)


def resign(store: EncryptedStore, member: Membership) -> None:
    """Drop the keys under which a server knew this user, and what was kept for it, once it has forgotten them."""
    forget_memory(store, member.user_id, member.deployment)
    forget_frozen_views(store, member.user_id, member.deployment)
    store.drop(_HANDED_OVER, name=member.deployment.identity, user=member.user_id)
    store.drop(_DEVICE, name=member.deployment.identity, user=member.user_id)


def device_of(store: EncryptedStore, user_id: str, deployment: Deployment) -> Device | None:
    """The user's device keys at that server, ``None`` before the first contact."""
    try:
        (data,) = store.get(_DEVICE, name=deployment.identity, user=user_id)
    except KeyError:
        return None
    return Device.from_bytes(data)


def register(
    store: EncryptedStore,
    user_id: str,
    deployment: Deployment,
    connection: Connection,
    *,
    token: str,
    pepper: bytes,
    now: float,
) -> Membership:
    """Make this device known to the server, or find that it is.

    Raises:
        UnknownUserError: the user is not enrolled on this device.
        PendingDeviceError: it is known, and waits for an approval; calling again asks whether it has been given.
        ServerRefusedError: the enrolment token is wrong, used up or another person's, or the device was revoked.
        ServerUnreachableError: the keys are kept; calling again goes on with them.
    """
    user = hash_user_id(user_id, deployment=deployment.name, pepper=pepper)
    with store.lock():
        device = device_of(store, user_id, deployment)
        if device is None:
            device = Device.new(now)
            _keep(store, user_id, deployment, device)
    if not device.registered:
        answer = connection.with_signer(Signer(device.signing_key, "new")).post_json(
            "/v1/devices",
            {
                "token": token,
                "user": user,
                "signing_key": _base64(device.signing_key.public_key().public_bytes_raw()),
                "sealing_key": _base64(device.sealing_key.public_key().public_bytes_raw()),
            },
        )
        if text(answer, "device_id") != device.device_id:
            raise WireError("the server knows this device by another id than its key gives; is the server newer?")
        check_state(device.device_id, text(answer, "state"))
        device = replace(device, registered=True)
        _keep(store, user_id, deployment, device)
    member = member_of(user_id, device, deployment, connection, pepper=pepper)
    return settle_keys(store, member) if device.coming is not None else member


def check_state(device_id: str, state: str) -> None:
    """Raise :class:`PendingDeviceError` for a device that may do nothing yet."""
    if state == "pending":
        raise PendingDeviceError(
            f"this device ({device_id}) waits for an approval: by another device of the same person (`uvsdk device "
            "approve`, Federation.approve_device), or by the operator; then try again"
        )


def replace_keys(store: EncryptedStore, member: Membership, now: float) -> Membership:
    """Put new keys in place of this device's, on the server and here; what waits to be sent stays good.

    The new keys are stored before the server hears of them, so that this device can sign whichever it knows: killed at
    any moment, the next call goes on.

    Raises:
        ServerUnreachableError, ServerRefusedError: the former keys are kept, and the new ones until it is known which
            of them the server has.
    """
    coming = (Ed25519PrivateKey.generate(), X25519PrivateKey.generate())
    device = _changed(store, member, lambda kept: kept if kept.coming else replace(kept, coming=coming))
    renewed = settle_keys(store, replace(member, device=device))
    device = _changed(store, renewed, lambda kept: replace(kept, made_unix_s=now))
    return replace(renewed, device=device)


def settle_keys(store: EncryptedStore, member: Membership) -> Membership:
    """End a replacement of keys that was begun, whichever keys the server has by now. Raises as above."""
    device = member.device
    if device.coming is None:
        return member
    signing, sealing = device.coming
    rotation = Rotation(
        deployment=member.deployment.name,
        device_id=device.device_id,
        former=device.signing_key.public_key().public_bytes_raw(),
        signing=signing.public_key().public_bytes_raw(),
        sealing=sealing.public_key().public_bytes_raw(),
    )
    values = {
        "signing_key": _base64(rotation.signing),
        "sealing_key": _base64(rotation.sealing),
        "proof": _base64(rotation.prove(signing)),
    }
    try:
        member.connection.put_json(f"/v1/devices/{device.device_id}/keys", values)
    except ServerRefusedError as error:
        if (error.status, error.kind) not in ((401, "bad-signature"), (409, "keys-replaced")):
            raise
        # An earlier try may have arrived without its answer: then the new keys sign, and the old ones do not.
        renewed = member.connection.with_signer(Signer(signing, device.device_id))
        try:
            renewed.get_json("/v1/devices")
        except ServerRefusedError:
            raise error from None

    def promoted(kept: Device) -> Device:
        if kept.coming is None:  # another process has come here before
            return kept
        return replace(kept, signing_key=kept.coming[0], sealing_key=kept.coming[1], coming=None)

    device = _changed(store, member, promoted)
    signer = Signer(device.signing_key, device.device_id)
    return replace(member, device=device, connection=member.connection.with_signer(signer))


@dataclass(frozen=True, slots=True)
class KnownDevice:
    """One device of a person, as the server knows it.

    Args:
        device_id: what the device itself shows.
        state: ``active``, ``unconfirmed`` (it trains only), ``pending`` (it waits for an approval) or ``revoked``.
        created_unix_s: when it registered.
        here: whether it is this device.
    """

    device_id: str
    state: str
    created_unix_s: float
    here: bool


def known_devices(member: Membership) -> tuple[KnownDevice, ...]:
    """This person's devices. Raises ``ServerUnreachableError``, ``ServerRefusedError``, ``WireError``."""
    _, values = member.connection.get_json("/v1/devices", query={"limit": 500})
    listed = values.get("devices")
    if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
        raise WireError("the server's answer lacks the list 'devices'")
    return tuple(
        KnownDevice(
            device_id=text(item, "device_id"),
            state=text(item, "state"),
            created_unix_s=number(item, "created"),
            here=text(item, "device_id") == member.device.device_id,
        )
        for item in listed
    )


def approve(member: Membership, device_id: str) -> None:
    """Let another device of this person act for them, by the word of this one. Raises as above."""
    member.connection.post(f"/v1/devices/{check_id(device_id)}/approval", b"", limit=JSON_LIMIT)


def revoke(member: Membership, device_id: str) -> None:
    """Take the rights of a device of this person. Raises as above."""
    member.connection.delete(f"/v1/devices/{check_id(device_id)}")


def check_id(device_id: str) -> str:
    """A device's id. Raises :class:`SettingsError`."""
    if not re.fullmatch("[0-9a-f]{32}", device_id):
        raise SettingsError("a device's id is 32 hexadecimal digits; the device itself shows it")
    return device_id


def member_of(
    user_id: str, device: Device, deployment: Deployment, connection: Connection, *, pepper: bytes
) -> Membership:
    """The membership of a device whose keys are known here, without asking the server."""
    user = hash_user_id(user_id, deployment=deployment.name, pepper=pepper)
    signer = Signer(device.signing_key, device.device_id)
    return Membership(user_id, user, device, deployment, connection.with_signer(signer))


def admission_of(
    member: Membership, features: Sequence[Array], models: Models, *, person_id: str, pepper: bytes
) -> Admission:
    """What this user's device says of itself: what the deployment's algorithm needs, and nothing else.

    Args:
        member: whose.
        features: what the store kept of the enrolment.
        models: where the server's model comes from, if a mean is needed.
        person_id: links the identities of one person, where the algorithm can use that; empty for no link.
        pepper: the deployment's.
    """
    deployment = member.deployment
    needs, version = deployment.needs, deployment.model_version
    mean, canonical, person = np.empty(0, np.float32), list[bytes](), ""
    if MEAN in needs or EMBEDDED in needs:
        rows = embeddings(features, models.of_round(version))
        mean = np.asarray(rows.mean(axis=0), np.float32) if MEAN in needs else mean
        canonical = [canonical_embedding(row) for row in rows] if EMBEDDED in needs else canonical
    if INSTANCES in needs:
        canonical = [canonical_instance(item) for item in features]
    if PERSON in needs and person_id:
        person = hash_person(person_id, deployment=deployment.name, pepper=pepper)
    hashes = {hash_instance(item, deployment=deployment.name, pepper=pepper) for item in canonical}
    instances = np.frombuffer(b"".join(sorted(hashes)), np.uint8).reshape(-1, 32)
    return Admission(member.user, version, len(features), mean, instances, person)


def admit(store: EncryptedStore, member: Membership, admission: Admission) -> Membership:
    """Send the admission, once."""
    _send(store, member, "admission", pack(admission), admission.model_version)
    device = _changed(store, member, lambda kept: replace(kept, admitted=True))
    return replace(member, device=device)


def check_server_verification(deployment: Deployment) -> None:
    """Raise ``EdgeOnlyError`` where a template may not leave the device."""
    if deployment.edge_only:
        raise EdgeOnlyError(
            f"under {deployment.config.algorithm} a template never leaves its device; verify here, and take "
            "part without server_verification"
        )


def send_template(store: EncryptedStore, member: Membership, template: Template) -> None:
    """Hand the template to the server, sealed, so that it can verify this user.

    Raises:
        EdgeOnlyError: under the deployment's algorithm no template may leave the device.
    """
    check_server_verification(member.deployment)
    upload = TemplateUpload(member.user, template.model_version, template.to_plain_bytes())
    _send(store, member, "template", pack(upload), template.model_version)


def was_handed_over(store: EncryptedStore, member: Membership) -> str:
    """Which template the server has last acknowledged, in the words of :func:`handed_over`; empty for none."""
    try:
        (data,) = store.get(_HANDED_OVER, name=member.deployment.identity, user=member.user_id)
    except KeyError:
        return ""
    return data.decode()


def note_handed_over(store: EncryptedStore, member: Membership, template: Template) -> None:
    """Remember that the server has this template, so that it is not sent again."""
    data = handed_over(template).encode()
    store.put(_HANDED_OVER, [data], name=member.deployment.identity, user=member.user_id)


def handed_over(template: Template) -> str:
    """SHA-256, 64 hexadecimal digits, of a template and the model it is of."""
    return hashlib.sha256(template.model_version.encode() + template.to_plain_bytes()).hexdigest()


def _send(store: EncryptedStore, member: Membership, message_type: str, message: bytes, model_version: str) -> None:
    deployment = member.deployment
    # By the clock, so that a store that was put back from a backup goes on above what it had sent; and above the last
    # one, whatever becomes of the clock.
    now_ms = time.time_ns() // 1_000_000
    device = _changed(store, member, lambda kept: replace(kept, number=max(kept.number + 1, now_ms)))
    message = pack(Numbered(device.number, message))
    binding = member.binding(
        message_type,
        round_id=0,
        model_version=model_version,
        algorithm=deployment.config.algorithm,
        key_id=deployment.server_key_id,
    )
    envelope = seal([message], binding, recipient=deployment.server_public_key, signing_key=member.device.signing_key)
    member.connection.put(f"/v1/users/{member.user}/{message_type}", envelope)


def _changed(store: EncryptedStore, member: Membership, change: Callable[[Device], Device]) -> Device:
    """Change what is kept of this device, whatever another process has changed of it meanwhile."""
    with store.lock():
        kept = device_of(store, member.user_id, member.deployment) or member.device
        device = change(kept)
        _keep(store, member.user_id, member.deployment, device)
    return device


def _keep(store: EncryptedStore, user_id: str, deployment: Deployment, device: Device) -> None:
    store.put(_DEVICE, [device.to_bytes()], name=deployment.identity, user=user_id)


def _named_by(signing_key: Ed25519PrivateKey) -> str:
    return hashlib.sha256(signing_key.public_key().public_bytes_raw()).hexdigest()[:32]


def _keys_of(texts: Sequence[str]) -> tuple[Ed25519PrivateKey, X25519PrivateKey]:
    signing, sealing = (base64.b64decode(text) for text in texts)
    return Ed25519PrivateKey.from_private_bytes(signing), X25519PrivateKey.from_private_bytes(sealing)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
