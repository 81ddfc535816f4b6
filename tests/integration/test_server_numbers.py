"""Numbers that nobody means, and texts that nothing can keep: every route answers below 500."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from pydantic import ValidationError

from tests.integration import harness
from tests.integration.harness import CONFIG, P, RunningServer, SyntheticDevice, kind
from uvsdk.errors import WireError
from uvsdk.federation.messages import Admission, Numbered, TemplateUpload
from uvsdk.records.codec import pack, unpack
from uvsdk.templates.template import Template
from uvsdk_server import Settings

HUGE = 10**400
TEXTS = ("-1", "0", "1e30", "1" + "0" * 30, str(2**31), str(2**63), "9" * 5000, "nan", "inf", "-inf", "1.5", "0x10")
TEXTS += ("true", "", " ", "\N{ARABIC-INDIC DIGIT THREE}", "1_0", "None")
LITERALS = ("-1", "0", "1e30", "1e400", "-1e400", "NaN", "Infinity", "-Infinity", str(HUGE), "1" * 5000, "true", "null")
LITERALS += ('"1"', '"NaN"', "[]", "{}", "1.5", str(2**63), '"\\ud800"', '"\\u0000"')
VALUES: tuple[Any, ...] = (0, -1, 2**31, 2**63, -(2**63) - 1, HUGE, 1e30, 1.5, True, None, "1", (), "\ud800", "\0")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    settings = {"start_after_users": 3, "registrations_per_minute": 100_000}
    config = replace(CONFIG, deadline_s=3600)
    with harness.serving(tmp_path_factory.mktemp("numbers"), config=config, settings=settings) as running:
        harness.devices_of(running, 3)
        yield running


@pytest.fixture(scope="module")
def device(server: RunningServer) -> SyntheticDevice:
    found = SyntheticDevice(server, 0)
    assert found.wait() is not None
    return found


def below_500(answer: harness.httpx.Response, *what: object) -> None:
    assert answer.status_code < 500, (*what, answer.status_code, answer.text[:200])


def parameters(server: RunningServer) -> Iterator[tuple[str, str, str, str]]:
    """Method, path, where and name of every parameter of every route."""
    for path, operations in server.ask("GET", "/openapi.json", token="").json()["paths"].items():
        for method, operation in operations.items():
            for parameter in operation.get("parameters", ()):
                if parameter["in"] in ("path", "query"):
                    yield method.upper(), path, parameter["in"], parameter["name"]


def test_every_parameter_of_every_route(server: RunningServer, device: SyntheticDevice) -> None:
    tried = 0
    for method, path, where, name in parameters(server):
        for text in TEXTS:
            fills = {"user": device.user, "device_id": device.device_id, "round_id": "1", "version": "current"}
            fills |= {"whose": "person", "name": device.user, "deletion_id": "0" * 32, "token_id": "0" * 12}
            if where == "path":
                fills[name] = quote(text, safe="")
            target = re.sub(r"\{(\w+)\}", lambda found: fills[found[1]], path)  # noqa: B023
            if where == "query":
                target += f"?{name}={quote(text, safe='')}"
            if (method, path) in (("DELETE", "/v1/users/{user}"), ("DELETE", "/v1/devices/{device_id}")) and (
                where == "query" or fills[name] in (device.user, device.device_id)
            ):
                continue
            below_500(server.ask(method, target), method, target)
            if text in ("nan", "inf", "1" + "0" * 30, str(2**63)) and method == "GET":
                below_500(device.request(method, target), "signed", method, target)
            tried += 1
    assert tried > 300


def test_a_long_poll_waits_no_undefined_time(device: SyntheticDevice) -> None:
    for text in ("nan", "inf", "-1"):
        answer = device.request("GET", f"/v1/rounds/current?after=1&wait_s={text}")
        assert (answer.status_code, kind(answer)) == (422, "invalid-request")


@pytest.mark.parametrize("literal", LITERALS)
def test_every_number_of_a_json_body(server: RunningServer, literal: str) -> None:
    verify = {"user": "a" * 64, "embedding": [0.6, 0.8], "model_version": "9c" * 32, "fmr": 0.01}
    token = {"user": "a" * 64, "uses": 1, "days": 1.0}
    embeddings = server.token("verify", "embeddings", "scores")
    for path, body, names, shown in (
        ("/v1/verify", verify, (*verify, "quality", "faces", "sample"), embeddings),
        ("/v1/enrolment-tokens", token, (*token, "label"), server.operator),
        (
            "/v1/devices",
            {"token": "t", "user": "a" * 64, "signing_key": "k", "sealing_key": "k"},
            ("token", "user"),
            "",
        ),
    ):
        for name in names:
            text = json.dumps({**body, name: "@"}).replace('"@"', literal)
            answer = server.ask(
                "POST", path, token=shown, content=text.encode(), headers={"Content-Type": "application/json"}
            )
            below_500(answer, path, name, literal)
    text = json.dumps({**verify, "embedding": "@"}).replace('"@"', f"[0.6, {literal}]")
    content = text.encode()
    answer = server.ask(
        "POST", "/v1/verify", token=embeddings, content=content, headers={"Content-Type": "application/json"}
    )
    below_500(answer, "embedding", literal)


def unchecked(message: Any, name: str, value: Any) -> bytes | None:
    """The message with one field replaced, as far as it can be written at all."""
    changed = replace(message, **{name: value})
    with contextlib.suppress(Exception):
        return pack(changed)
    found = pack(message)
    if isinstance(value, str):
        raw = json.dumps(value)
        length = int.from_bytes(found[4:8], "little")
        header = json.loads(found[8 : 8 + length])
        header["fields"][name] = {"value": "@@"}
        text = json.dumps(header, separators=(",", ":")).replace('"@@"', raw).encode()
        return found[:4] + len(text).to_bytes(4, "little") + text + found[8 + length :]
    return None


def test_every_number_and_text_of_every_sealed_message(server: RunningServer, device: SyntheticDevice) -> None:
    version = str(device.deployment()["model_version"])
    header = device.wait(wait_s=0)
    assert header is not None
    admission = Admission(device.user, version, 5, 0.8 * device.direction(0))
    enrolled = Template(device.direction(0), version, CONFIG.modality, 3)
    template = TemplateUpload(device.user, version, enrolled.to_plain_bytes())
    head = device.head(header, P)
    tried = 0
    for message, message_type in ((admission, "admission"), (template, "template")):
        for item in fields(message):
            if isinstance(getattr(message, item.name), np.ndarray):
                continue
            for value in VALUES:
                body = unchecked(message, item.name, value)
                if body is not None:
                    below_500(device._send(message_type, body, version), message_type, item.name, value)
                    tried += 1
    for value in VALUES:
        with contextlib.suppress(Exception):  # what its own record refuses
            packed = replace(enrolled, samples=value).to_plain_bytes()
            sent = device._send("template", pack(replace(template, template=packed)), version)
            below_500(sent, "samples of a template", value)
        with contextlib.suppress(WireError, TypeError):
            body = device.sealed("admission", pack(admission), version, number=value)
            below_500(device.request("PUT", f"/v1/users/{device.user}/admission", body), "number", value)
    for item in fields(head):
        if not isinstance(getattr(head, item.name), np.ndarray):
            for value in VALUES:
                body = unchecked(head, item.name, value)
                if body is not None:
                    below_500(device.upload(header, device.update(header, head=body)), "head", item.name, value)
                    tried += 1
    assert tried > 80
    answer = device.admit(samples=10**30)
    assert (answer.status_code, kind(answer)) == (422, "invalid-update")
    assert server.ask("GET", "/readyz").status_code == 200


def test_a_number_beyond_64_bits_is_not_read() -> None:
    body = pack(Numbered(7, b"x"))
    for value in (2**63, -(2**63) - 1, HUGE):
        text = body[8:-1].replace(b"7", str(value).encode())
        with pytest.raises(WireError):
            unpack(Numbered, body[:4] + len(text).to_bytes(4, "little") + text + body[-1:])


def test_a_token_that_no_database_takes(server: RunningServer) -> None:
    for text in ("uvsdk_\0_x", "uvsdk_\ud800_x", "\xff_\xfe_\xfd", "uvsdk_" + "1" * 5000 + "_x"):
        body = {"token": text[:200], "user": "a" * 64, "signing_key": "A" * 43 + "=", "sealing_key": "A" * 43 + "="}
        content = json.dumps(body).encode()
        below_500(SyntheticDevice(server, 50).request("POST", "/v1/devices", content, key_id="new"), text[:20])


@pytest.mark.parametrize(
    "change",
    [{"round_pause_s": "nan"}, {"key_lifetime_s": "inf"}, {"default_fmr": "nan"}, {"retry_delay_s": "nan"}],
)
def test_settings_take_no_undefined_number(tmp_path: Path, change: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        Settings.model_validate({"data": tmp_path, **change})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]", "", "192.0.2.1", "clinic.example", "127.0.0.1.nip.io"])
def test_plain_http_for_others_needs_the_operators_word(tmp_path: Path, host: str) -> None:
    with pytest.raises(ValidationError, match="--allow-plain-http"):
        Settings(data=tmp_path, host=host)
    assert Settings(data=tmp_path, host=host, allow_plain_http=True).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"])
def test_plain_http_on_this_machine_needs_no_word(tmp_path: Path, host: str) -> None:
    assert Settings(data=tmp_path, host=host).host == host


def test_what_nobody_foresaw_is_logged_without_its_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither the message, which may quote anybody's row, nor SQL's parameters."""
    secret = "a row of somebody"

    async def failing(*_: object) -> None:
        raise RuntimeError(secret)

    with harness.serving(tmp_path) as server:
        monkeypatch.setattr("uvsdk_server.store.ledger.list_rounds", failing)
        answer = server.ask("GET", "/v1/rounds")
        assert (answer.status_code, kind(answer)) == (500, "internal")
        query = "select json_extract(:secret, :secret)"

        async def in_sql(connection: Any, *_: object) -> None:
            from sqlalchemy import text

            await connection.execute(text(query), {"secret": secret})

        monkeypatch.setattr("uvsdk_server.store.ledger.list_rounds", in_sql)
        assert server.ask("GET", "/v1/rounds").status_code == 500
    said = capfd.readouterr()
    assert secret not in said.err + said.out
    lines = [json.loads(line) for line in said.err.splitlines() if line.startswith("{")]
    failures = [line for line in lines if line["event"] == "request failed"]
    assert [line["error"] for line in failures] == ["RuntimeError", "OperationalError"]
    assert all(line["where"] for line in failures)
