"""Somebody between a device and its server exchanges what they say: the device seals nothing to a stranger's key."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tests.integration.harness import CONFIG, RunningServer, serving
from tests.integration.numpy_devices import federation_of, make_store, pages, token_of
from uvsdk import enroll
from uvsdk.bundle import shipped
from uvsdk.errors import SealError, UnapprovedConfigError
from uvsdk.federation.messages import ServerStatement
from uvsdk.federation.statements import Validity, sign_statement
from uvsdk.privacy.identifiers import key_id
from uvsdk_device.connection import Connection

PEOPLE = 3
Values = dict[str, Any]
MALLORY, MALLORYS_SIGNATURES = X25519PrivateKey.generate(), Ed25519PrivateKey.generate()
MALLORYS_KEY = MALLORY.public_key().public_bytes_raw()


def exchanged(values: Values) -> Values:
    """Mallory's key under the server's name for its own."""
    return {**values, "server_public_key": base64.b64encode(MALLORYS_KEY).decode()}


def exchanged_and_renamed(values: Values) -> Values:
    return {**exchanged(values), "server_key_id": key_id(MALLORYS_KEY)}


def impersonated(values: Values) -> Values:
    """All of Mallory's own, consistent in itself."""
    statement = ServerStatement(
        deployment=values["deployment"],
        config_digest=values["config_digest"],
        server_key_id=key_id(MALLORYS_KEY),
        server_public_key=MALLORYS_KEY,
        model_version=values["model_version"],
        needs=tuple(values["needs"]),
        authorities=tuple(values["authorities"]),
    )
    validity = Validity(values["issued_unix_s"], values["expires_unix_s"])
    return {
        **exchanged_and_renamed(values),
        "server_signing_key": base64.b64encode(MALLORYS_SIGNATURES.public_key().public_bytes_raw()).decode(),
        "signature": base64.b64encode(sign_statement(statement, validity, MALLORYS_SIGNATURES)).decode(),
    }


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    config = replace(CONFIG, rounds=1)
    with serving(tmp_path / "server", config=config, settings={"start_after_users": str(PEOPLE)}) as running:
        yield running


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[Values], Values]], None]:
    """Stand in between: ``between(path, change)`` alters the answers of ``path``."""
    asked = Connection.get_json

    def stand(path: str, change: Callable[[Values], Values]) -> None:
        def altered(self: Connection, target: str, **query: Any) -> Any:
            answer, values = asked(self, target, **query)
            return answer, change(dict(values)) if target == path and values else values

        monkeypatch.setattr(Connection, "get_json", altered)

    return stand


@pytest.mark.parametrize("change", [exchanged, exchanged_and_renamed])
def test_an_exchanged_key_of_the_deployment_is_noticed(
    server: RunningServer, tmp_path: Path, between: Any, change: Callable[[Values], Values]
) -> None:
    store = make_store(tmp_path, 0)
    between("/v1/deployment", change)
    federation = federation_of(server, server.token("enrol", uses=1))
    result = enroll("person 0", pages(0), model=shipped(), store=store, federation=federation)
    assert result.participation is not None
    assert "nothing is sent" in result.participation.detail
    with pytest.raises(SealError, match="nothing is sent"):
        federation.participate("person 0", store)
    assert server.rows("select count(*) from devices") == [(0,)]


def test_a_known_server_cannot_be_impersonated(server: RunningServer, tmp_path: Path, between: Any) -> None:
    store = make_store(tmp_path, 0)
    enroll("person 0", pages(0), model=shipped(), store=store)
    federation = federation_of(server, token_of(server, "person 0"), server_verification=True)
    federation.newest_model("person 0", store)
    query = "select admitted, admission_sealed, sealed from users left join templates on users.user = templates.user"
    before = server.rows(query)
    between("/v1/deployment", impersonated)
    with pytest.raises(UnapprovedConfigError, match="signing key"):
        federation.refresh_template("person 0", store)
    assert server.rows(query) == before


@pytest.mark.parametrize(
    "change",
    [
        exchanged,
        exchanged_and_renamed,
        lambda values: {**values, "cohort": 1000},
        lambda values: {**values, "signature": base64.b64encode(bytes(64)).decode()},
    ],
)
def test_an_altered_round_is_noticed_and_nothing_is_trained(
    server: RunningServer, tmp_path: Path, between: Any, change: Callable[[Values], Values]
) -> None:
    token = server.token("enrol", uses=PEOPLE)
    stores = [make_store(tmp_path, person) for person in range(PEOPLE)]
    federation = federation_of(server, token)
    for person, store in enumerate(stores):
        enroll(f"person {person}", pages(person), model=shipped(), store=store)
        federation.newest_model(f"person {person}", store)
    between("/v1/rounds/current", change)
    with pytest.raises(SealError, match="nothing is sent"):
        federation.participate("person 0", stores[0], max_rounds=1)
    assert federation.trainer.jobs == []  # type: ignore[union-attr]
    assert server.rows("select count(*) from uploads") == [(0,)]
