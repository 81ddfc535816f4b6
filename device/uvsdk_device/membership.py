"""One user's membership in one deployment: this device's keys there, and what the server was told once.

Every step can be repeated: keys are stored before the server hears of them, and the server knows them again.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from uvsdk.arrays import Array
from uvsdk.errors import EdgeOnlyError, StillRegisteredError, WireError
from uvsdk.federation.codec import pack
from uvsdk.federation.messages import Admission, Numbered, TemplateUpload
from uvsdk.federation.strategy import EMBEDDED, INSTANCES, MEAN, PERSON
from uvsdk.privacy.identifiers import canonical_embedding, canonical_instance, hash_instance, hash_person, hash_user_id
from uvsdk.privacy.sealing import Binding, new_nonce, seal
from uvsdk.template import Template
from uvsdk.transfer import stays_here
from uvsdk_device.connection import Connection, Signer
from uvsdk_device.deployment import Deployment, text
from uvsdk_device.frozen_views import forget_frozen_views
from uvsdk_device.keystore import EncryptedStore
from uvsdk_device.memory import forget_memory
from uvsdk_device.models import Models
from uvsdk_device.reembedding import embeddings

_DEVICE = "device"


@dataclass(frozen=True, slots=True, repr=False)
class Device:
    """This device as one server knows it, for one user.

    Args:
        signing_key: signs requests and envelopes.
        sealing_key: opens what the server seals to this device.
        registered: whether the server has acknowledged the keys.
        admitted: whether it has acknowledged the admission.
        number: of the last message about its user that this device has made.
    """

    signing_key: Ed25519PrivateKey
    sealing_key: X25519PrivateKey
    registered: bool = False
    admitted: bool = False
    number: int = 0

    @property
    def device_id(self) -> str:
        """First 32 hexadecimal digits of SHA-256 of the public signing key."""
        return hashlib.sha256(self.signing_key.public_key().public_bytes_raw()).hexdigest()[:32]

    __reduce_ex__ = stays_here("it holds private keys; read it from the store in each process")

    def to_bytes(self) -> bytes:
        """For the encrypted store only."""
        return json.dumps(
            {
                "signing_key": _base64(self.signing_key.private_bytes_raw()),
                "sealing_key": _base64(self.sealing_key.private_bytes_raw()),
                "registered": self.registered,
                "admitted": self.admitted,
                "number": self.number,
            }
        ).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Device:
        """The inverse of :meth:`to_bytes`."""
        values = json.loads(data)
        return cls(
            Ed25519PrivateKey.from_private_bytes(base64.b64decode(values["signing_key"])),
            X25519PrivateKey.from_private_bytes(base64.b64decode(values["sealing_key"])),
            values["registered"],
            values["admitted"],
            values.get("number", 0),
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
    store.drop(_DEVICE, name=member.deployment.identity, user=member.user_id)


def device_of(store: EncryptedStore, user_id: str, deployment: Deployment) -> Device | None:
    """The user's device keys at that server, ``None`` before the first contact."""
    try:
        (data,) = store.get(_DEVICE, name=deployment.identity, user=user_id)
    except KeyError:
        return None
    return Device.from_bytes(data)


def register(
    store: EncryptedStore, user_id: str, deployment: Deployment, connection: Connection, *, token: str, pepper: bytes
) -> Membership:
    """Make this device known to the server, or find that it is.

    Raises:
        UnknownUserError: the user is not enrolled on this device.
        ServerRefusedError: the enrolment token is wrong or used up.
        ServerUnreachableError: the keys are kept; calling again goes on with them.
    """
    user = hash_user_id(user_id, deployment=deployment.name, pepper=pepper)
    with store.lock():
        device = device_of(store, user_id, deployment)
        if device is None:
            device = Device(Ed25519PrivateKey.generate(), X25519PrivateKey.generate())
            _keep(store, user_id, deployment, device)
    if not device.registered:
        answer = connection.signed_by(Signer(device.signing_key, "new")).post_json(
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
        device = replace(device, registered=True)
        _keep(store, user_id, deployment, device)
    return member_of(user_id, device, deployment, connection, pepper=pepper)


def member_of(
    user_id: str, device: Device, deployment: Deployment, connection: Connection, *, pepper: bytes
) -> Membership:
    """The membership of a device whose keys are known here, without asking the server."""
    user = hash_user_id(user_id, deployment=deployment.name, pepper=pepper)
    signer = Signer(device.signing_key, device.device_id)
    return Membership(user_id, user, device, deployment, connection.signed_by(signer))


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
    packed = np.frombuffer(template.packed(), np.uint8)
    upload = TemplateUpload(member.user, template.model_version, packed)
    _send(store, member, "template", pack(upload), template.model_version)


def _send(store: EncryptedStore, member: Membership, message_type: str, message: bytes, model_version: str) -> None:
    deployment = member.deployment
    # By the clock, so that a store that was put back from a backup goes on above what it had sent; and above the last
    # one, whatever becomes of the clock.
    now_ms = time.time_ns() // 1_000_000
    device = _changed(store, member, lambda kept: replace(kept, number=max(kept.number + 1, now_ms)))
    message = pack(Numbered(device.number, np.frombuffer(message, np.uint8)))
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


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
