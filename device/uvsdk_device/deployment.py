"""What a coordination server says of itself, and what this device has agreed to.

A device agrees to a deployment once: to its name, to the digest of its training configuration and to the key
the server signs with. A server that later asks for something else is refused, because a changed configuration
could make a device reveal more than its owner approved (SPEC Appendix A).
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

from uvsdk.bundle import Bundle
from uvsdk.errors import SettingsError, UnapprovedConfigError, WireError
from uvsdk.federation import algorithms
from uvsdk.federation.messages import ServerStatement, TrainingConfig
from uvsdk.federation.statements import Validity, verify_statement
from uvsdk_device.address import Address
from uvsdk_device.connection import Connection, Object
from uvsdk_device.keystore import EncryptedStore

_APPROVAL = "approval"


@dataclass(frozen=True, slots=True)
class Deployment:
    """The answer of ``GET /v1/deployment``.

    Args:
        name: name of the deployment.
        config: what a round asks of a device.
        server_key_id: which key uploads are sealed to now.
        server_public_key: that key.
        server_signing_key: signs what the server seals to devices.
        model_version: the current model.
        modality: its name, e.g. ``voice`` or ``face``.
        needs: what joining sends beside the hashed id, words of :mod:`uvsdk.federation.strategy`; sorted.
        edge_only: whether the algorithm lets no template leave the device.
    """

    name: str
    config: TrainingConfig
    server_key_id: str
    server_public_key: X25519PublicKey
    server_signing_key: Ed25519PublicKey
    model_version: str
    modality: str
    needs: tuple[str, ...]
    edge_only: bool

    @property
    def identity(self) -> str:
        """What names this server in the store: its name and signing key, so that its address may change."""
        return _identity(self.name, self.server_signing_key.public_bytes_raw())

    @classmethod
    def from_json(cls, values: Object, *, authority: str, now: float) -> Deployment:
        """Check and read the answer of a server that is called ``authority``, at the time ``now``.

        What joining sends is a function of the configuration; the server's word for it is held against that, so that
        it cannot ask for more than the owner approves with the configuration's digest.

        Raises:
            WireError: not the answer of a uvsdk server.
            UnapprovedConfigError: it asks for what its configuration does not need, or is called otherwise.
            UnknownNameError, SettingsError: an algorithm, or settings of one, that are not known here.
            SealError: the key to seal to is not the one that this signing key stands behind, or no longer.
        """
        config = TrainingConfig.from_json(json.dumps(values.get("config")))
        name = text(values, "deployment")
        if config.deployment != name or config.modality != text(values, "modality"):
            raise WireError("the server's configuration is for another deployment or modality than it names")
        if config.digest() != text(values, "config_digest"):
            raise WireError("the server's configuration does not have the digest it states; is one side newer?")
        algorithm = algorithms.server(config.algorithm)
        needs = tuple(sorted(algorithm.needs(algorithms.settings(config.algorithm, config.algorithm_settings))))
        if values.get("needs") != list(needs):
            raise UnapprovedConfigError(
                f"the server asks those who join for something else than its configuration needs ({', '.join(needs)}); "
                "is one side newer?"
            )
        public_key = key_bytes(values, "server_public_key")
        signing_key = Ed25519PublicKey.from_public_bytes(key_bytes(values, "server_signing_key"))
        statement = ServerStatement(
            deployment=name,
            config_digest=config.digest(),
            server_key_id=text(values, "server_key_id"),
            server_public_key=public_key,
            model_version=text(values, "model_version"),
            needs=needs,
            authorities=_texts(values, "authorities"),
        )
        verify_statement(statement, validity_of(values), signature_bytes(values), signing_key, now=now)
        if authority not in statement.authorities:
            raise UnapprovedConfigError(
                f"this device calls the server {authority}, which is none of the names it says it has "
                f"({', '.join(statement.authorities) or 'none for this address'}); if the address is right, its "
                f"operator names it: uvsdk serve --authority {authority}"
            )
        return cls(
            name=name,
            config=config,
            server_key_id=statement.server_key_id,
            server_public_key=X25519PublicKey.from_public_bytes(public_key),
            server_signing_key=signing_key,
            model_version=statement.model_version,
            modality=config.modality,
            needs=needs,
            edge_only=not algorithm.verifies_on_server,
        )


def approved_deployment(
    connection: Connection, store: EncryptedStore, *, approve: str | None, now: float
) -> Deployment:
    """Ask the server what it is, and hold that against what this device agreed to.

    Args:
        connection: to the server.
        store: remembers what was agreed to.
        approve: digest of the configuration the owner approves; ``None`` trusts the first one and remembers it.
        now: seconds since 1970.

    Raises:
        UnapprovedConfigError: another configuration, name, address or signing key than agreed.
        SealError: the key to seal to is not the one that the signing key stands behind, or no longer.
        WireError: not an answer of such a server.
    """
    _, values = connection.get_json("/v1/deployment")
    deployment = Deployment.from_json(values, authority=connection.authority, now=now)
    stated = {
        "deployment": deployment.name,
        "config_digest": deployment.config.digest(),
        "signing_key": base64.b64encode(deployment.server_signing_key.public_bytes_raw()).decode(),
    }
    with store.lock():
        agreed = _agreed(store, connection.url)
        if approve is not None:
            # An explicit approval stands above what was remembered of the configuration, not of the key.
            agreed = {**agreed, "config_digest": approve}
        for field, value in agreed.items():
            if stated[field] != value:
                raise UnapprovedConfigError(_refusal(field, value, stated[field]))
        if agreed != stated or approve is not None:
            store.put(_APPROVAL, [json.dumps(stated).encode()], name=connection.url)
    return deployment


def check_fit(modality: str, model: Bundle | None, *, deployment: Deployment) -> None:
    """Raise :class:`SettingsError` where the enrolment is by another modality, or the model at hand is another one."""
    if modality != deployment.modality:
        raise SettingsError(f"the enrolment is by {modality}, the server trains {deployment.modality}")
    if model is not None and model.manifest.train != deployment.config.train:
        raise SettingsError(
            f"of the model at hand {model.manifest.train!r} is trained, the server trains "
            f"{deployment.config.train!r}; hand over the server's model, or none: it is then downloaded"
        )


def forget_approval(store: EncryptedStore, url: str) -> str:
    """Forget what was agreed with the server at ``url``; the next contact is a first one.

    Returns:
        The deployment's identity; empty where nothing was agreed.

    Raises:
        SettingsError: not the address of a server.
    """
    known = Address.parse(url, allow_plain_http=True).url
    agreed = _agreed(store, known)
    store.drop(_APPROVAL, name=known)
    return _identity(agreed["deployment"], base64.b64decode(agreed["signing_key"])) if agreed else ""


def text(values: Object, field: str) -> str:
    """A field that must be text. Raises :class:`WireError`."""
    value = values.get(field)
    if not isinstance(value, str) or not value:
        raise WireError(f"the server's answer lacks the text {field!r}")
    return value


def key_bytes(values: Object, field: str) -> bytes:
    """A field that must be 32 bytes in base64. Raises :class:`WireError`."""
    try:
        key = base64.b64decode(text(values, field), validate=True)
    except ValueError as error:
        raise WireError(f"{field} is not base64") from error
    if len(key) != 32:
        raise WireError(f"{field} has {len(key)} bytes, expected 32")
    return key


def signature_bytes(values: Object) -> bytes:
    """The field ``signature``: base64 of 64 bytes. Raises :class:`WireError`."""
    try:
        signature = base64.b64decode(text(values, "signature"), validate=True)
    except ValueError as error:
        raise WireError("signature is not base64") from error
    if len(signature) != 64:
        raise WireError(f"signature has {len(signature)} bytes, expected 64")
    return signature


def validity_of(values: Object) -> Validity:
    """The fields ``issued_unix_s`` and ``expires_unix_s``. Raises :class:`WireError`, ``SealError``."""
    return Validity(number(values, "issued_unix_s"), number(values, "expires_unix_s"))


def number(values: Object, field: str) -> float:
    """A field that must be a finite number. Raises :class:`WireError`."""
    value = values.get(field)
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            found = float(value)
        except OverflowError:  # a whole number beyond every float
            found = math.inf
        if math.isfinite(found):
            return found
    raise WireError(f"the server's answer lacks the number {field!r}")


def _texts(values: Object, field: str) -> tuple[str, ...]:
    found = values.get(field)
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise WireError(f"the server's answer lacks the list {field!r}")
    return tuple(found)


def _identity(name: str, signing_key: bytes) -> str:
    return f"{name}/{hashlib.sha256(signing_key).hexdigest()[:32]}"


def _agreed(store: EncryptedStore, url: str) -> dict[str, str]:
    try:
        (data,) = store.get(_APPROVAL, name=url)
    except KeyError:
        return {}
    agreed: dict[str, str] = json.loads(data)
    return agreed


def _refusal(field: str, agreed: str, stated: str) -> str:
    if field == "config_digest":
        return (
            f"the server trains under the configuration {stated[:16]}, approved is {agreed[:16]}; look at what changed "
            "(GET /v1/deployment) and approve the new digest if you agree"
        )
    return (
        f"the server's {field.replace('_', ' ')} is not the one this device first met at this address; if that is "
        "meant to be, forget the server (uvsdk store --forget-server) and join again"
    )
