"""New keys in place of a device's old ones: signed by the old, and proven to be held.

The request that hands in new keys is signed by the old signing key (:mod:`uvsdk.privacy.request_signing`), so nobody
else can replace a device's keys. The proof here is signed by the *new* one, over everything that must not be taken
from one rotation into another, so that nobody can pass off somebody else's key as their own.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from uvsdk.errors import SealError

_SIGNED = b"uvsdk/rotation/1"


@dataclass(frozen=True, slots=True)
class Rotation:
    """One replacement of keys; each is raw and has 32 bytes.

    Args:
        deployment: name of the deployment.
        device_id: as the server knows the device, before and after.
        former: public signing key that is replaced.
        signing: public signing key (Ed25519) from now on.
        sealing: public sealing key (X25519) from now on.
    """

    deployment: str
    device_id: str
    former: bytes
    signing: bytes
    sealing: bytes

    def __post_init__(self) -> None:
        if any(len(key) != 32 for key in (self.former, self.signing, self.sealing)):
            raise SealError("raw public keys have 32 bytes")

    def prove(self, key: Ed25519PrivateKey) -> bytes:
        """The proof by the new signing key, 64 bytes."""
        return key.sign(self._message())

    def check(self, proof: bytes) -> None:
        """Raise :class:`SealError` unless the holder of the new signing key made ``proof`` for this very rotation."""
        try:
            Ed25519PublicKey.from_public_bytes(self.signing).verify(proof, self._message())
        except InvalidSignature as error:
            raise SealError("the proof is not by the new signing key, or is for another rotation") from error

    def _message(self) -> bytes:
        named = hashlib.sha256(self.deployment.encode()).digest() + hashlib.sha256(self.device_id.encode()).digest()
        return _SIGNED + named + self.former + self.signing + self.sealing
