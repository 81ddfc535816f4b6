"""Whether a sealed message is the one that belongs here, field by field, and by whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from uvsdk.errors import SealError
from uvsdk.federation.messages import TrainingConfig
from uvsdk.privacy.sealing import Envelope
from uvsdk.rest.problems import Problem
from uvsdk_server.keys import KeyRing
from uvsdk_server.people import Device
from uvsdk_server.store.rows import Round


@dataclass(frozen=True, slots=True)
class Expected:
    """What the binding of a message from a device must say. ``model_version`` ``None`` leaves that to the caller."""

    deployment: str
    message_type: str
    algorithm: str
    round_id: int
    model_version: str | None
    server_key_id: str | None

    @classmethod
    def of(cls, config: TrainingConfig, message_type: str, row: Round | None = None) -> Expected:
        """Of a message in that round; of one outside rounds, key and model are the caller's to check."""
        place = (0, None, None) if row is None else (row.round_id, row.model_version, row.server_key_id)
        return cls(config.deployment, message_type, config.algorithm, *place)


# field -> (kind, what to do)
_REFUSALS: Mapping[str, tuple[str, str]] = {
    "deployment": ("wrong-deployment", "it was sealed for another deployment"),
    "direction": ("malformed", "it is not a message to the server"),
    "message_type": ("malformed", "it is another type of message than this address takes"),
    "algorithm": ("wrong-algorithm", "it was made with another algorithm; fetch the deployment again"),
    "round_id": ("wrong-round", "it belongs to another round; ask for the current one"),
    "model_version": ("wrong-model", "it was made with another model version than the round's"),
    "recipient_key_id": ("wrong-key", "it is sealed to another key than the server's; fetch the deployment again"),
    "sender": ("wrong-sender", "its sender is not the device that signed the request"),
}


def check(envelope: Envelope, device: Device, expected: Expected) -> None:
    """Compare the binding with ``expected`` and check the sender's signature. Raises :class:`Problem`."""
    wanted = {
        "deployment": expected.deployment,
        "direction": "up",
        "message_type": expected.message_type,
        "algorithm": expected.algorithm,
        "round_id": expected.round_id,
        "model_version": expected.model_version,
        "recipient_key_id": expected.server_key_id,
        "sender": device.device_id,
    }
    for field, value in wanted.items():
        if value is not None and getattr(envelope.binding, field) != value:
            kind, detail = _REFUSALS[field]
            raise Problem(kind, f"the sealed message was refused: {detail}")
    try:
        envelope.verify(device.signing_key)
    except SealError as error:
        # Sealed before this device's keys were replaced; the request around it is signed by the new one.
        if device.former_signing_key is None or not _is_by(envelope, device.former_signing_key):
            raise Problem("bad-signature", str(error)) from error


def _is_by(envelope: Envelope, key: Ed25519PublicKey) -> bool:
    try:
        envelope.verify(key)
    except SealError:
        return False
    return True


def open_single(data: bytes, device: Device, expected: Expected, keys: KeyRing) -> bytes:
    """The one chunk of a small message, checked against ``expected``.

    Raises:
        Problem: it belongs elsewhere, or is sealed to a key the server no longer has.
        WireError: not an envelope, or one of several chunks.
        SealError: it does not open.
    """
    with Envelope.parse(data) as envelope:
        check(envelope, device, expected)
        private_key = keys.hpke(envelope.binding.recipient_key_id)
        if private_key is None:
            kind, detail = _REFUSALS["recipient_key_id"]
            raise Problem(kind, f"the sealed message was refused: {detail}")
        if len(envelope.chunk_lengths) != 1:
            raise Problem("malformed", f"expected one chunk, got {len(envelope.chunk_lengths)}")
        return envelope.open_chunk(0, private_key)
