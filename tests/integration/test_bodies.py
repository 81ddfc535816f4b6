"""Bodies, addresses and headers that nobody means, sent over one connection to every route of server and agent."""

from __future__ import annotations

import http.client
import importlib
import json
import os
import pkgutil
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from fastapi.routing import APIRoute

from tests.builders import image_file, on_loopback
from tests.integration.harness import RunningServer, SyntheticDevice, devices_of, kind, serving
from tests.integration.numpy_devices import make_store
from uvsdk import enroll
from uvsdk.bundle import inference, shipped
from uvsdk.errors import UnknownUserError
from uvsdk_device import agent
from uvsdk_device.runtime import Runtime
from uvsdk_server import routes
from uvsdk_server.bodies import StrictRoute

TOKEN = "agent token"
USER = "a" * 64

# No JSON in UTF-8: always 400, malformed.
MALFORMED = {
    "nothing": b"",
    "half": b'{"user": "',
    "two": b"{} {}",
    "latin 1": '{"user": "é"}'.encode("latin-1"),
    "utf 16": '{"user": "a"}'.encode("utf-16"),
    "byte order mark": b"\xef\xbb\xbf{}",
    "zero": b"\x00",
    "nan": b'{"fmr": NaN}',
    "infinity": b'{"fmr": -Infinity}',
    "twice": b'{"user": "a", "user": "b"}',
    "surrogate": b'{"user": "\\ud800"}',
    "surrogate in a name": b'{"\\udfff": 1}',
    "deep": b"[" * 100_000 + b"]" * 100_000,
    "deep in a field": b'{"user": ' + b"[" * 500 + b"]" * 500 + b"}",
    "endless number": b'{"fmr": ' + b"9" * 5000 + b"}",
    "sample": json.dumps({"user": USER, "sample": "é"}).encode(),
    "sample in Greek": json.dumps({"user": USER, "sample": "αβγδ"}).encode(),
    "sample of a surrogate": b'{"user": "%s", "sample": "\\ud83d"}' % USER.encode(),
}

# JSON, and not what is asked for: 422 (server), or 400 (agent).
INVALID = {
    "null": b"null",
    "list": b"[]",
    "text": b'"text"',
    "number": b"1e400",
    "empty": b"{}",
    "numbers": b'{"user": 1, "sample": 2}',
    "lists": b'{"user": [], "sample": {}}',
    "strange name": '{"\u202e\\u0000": 1}'.encode(),
    "zero byte": b'{"user": "a\\u0000b", "sample": "", "fmr": 0.5, "more": 1}',
    "large number": b'{"user": "%s", "sample": "", "fmr": %s}' % (USER.encode(), b"9" * 400),
    "fmr": b'{"user": "%s", "sample": "", "fmr": 1e999}' % USER.encode(),
    "true": b'{"user": "%s", "sample": "", "fmr": true, "quality": "?"}' % USER.encode(),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with serving(tmp_path_factory.mktemp("bodies"), settings={"start_after_users": 1000}) as running:
        yield running


def picture(seed: int) -> bytes:
    """A file of 2 MB: a sign, with a noise that nobody sees."""
    noise = np.random.default_rng(seed).integers(0, 3, (1400, 1400), dtype=np.uint8)
    page = np.full((1400, 1400), 250, np.uint8)
    page[200:1200, 600:800] = page[200:400, 300:1100] = 5
    return image_file(page + noise, "BMP")


@pytest.fixture(scope="module")
def agent_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:

    folder = tmp_path_factory.mktemp("agent")
    store = make_store(folder, 0)
    enroll("ada", [picture(seed) for seed in (1, 2, 3)], model=shipped(), store=store)

    def forget(user: str) -> None:
        raise UnknownUserError("nobody of that name is enrolled on this device")

    app = agent.create_app(Runtime(store, shipped()), token=TOKEN, forget=forget)  # type: ignore[arg-type]
    with on_loopback(app) as url:
        yield url


def send(
    connection: http.client.HTTPConnection, method: str, target: str, body: bytes, **headers: str
) -> tuple[int, dict[str, object]]:
    """One request, and proof that the next one on that connection is answered."""
    connection.putrequest(method, target, skip_accept_encoding=True)
    for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
        connection.putheader(name.replace("_", "-"), value.encode("latin-1"))
    connection.endheaders(body)
    answer = connection.getresponse()
    text, status = answer.read(), answer.status
    assert answer.getheader("connection") != "close", (target, body[:50], text)
    connection.request("GET", "/healthz")
    assert connection.getresponse().read().startswith(b'{"status":"ok"')
    assert status < 500, (target, body[:50], text)
    is_json = (answer.getheader("content-type") or "").endswith("json")
    return status, json.loads(text) if text and is_json else {}


def connected(url: str) -> closing[http.client.HTTPConnection]:
    parts = urlsplit(url)
    return closing(http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=30))


@pytest.mark.parametrize("name", sorted(MALFORMED))
def test_what_is_no_json_is_malformed(server: RunningServer, agent_url: str, name: str) -> None:
    body = MALFORMED[name]
    with connected(server.url) as connection:
        for token in (server.operator, server.token("verify")):
            status, document = send(connection, "POST", "/v1/verify", body, Authorization=f"Bearer {token}")
            # Without a body FastAPI misses it; with any it is read.
            assert (status, document["type"]) == (400, "urn:uvsdk:problem:malformed") or not body, document
        assert send(connection, "POST", "/v1/verify", body)[0] == 401
    device = SyntheticDevice(server, 1)
    answer = device.request("POST", "/v1/devices", body, key_id="new", Content_Type="application/json")
    assert answer.status_code in (400, 413) or (answer.status_code == 422 and (not body or name.startswith("sample")))
    kind(answer)
    with connected(agent_url) as connection:
        status, document = send(connection, "POST", "/v1/verify", body, Authorization=f"Bearer {TOKEN}")
        assert (status, document["type"]) == (400, "urn:uvsdk:problem:malformed"), document
        assert send(connection, "POST", "/v1/verify", body)[0] == 401


@pytest.mark.parametrize("name", sorted(INVALID))
def test_what_is_json_and_not_asked_for_is_refused(server: RunningServer, agent_url: str, name: str) -> None:
    body = INVALID[name]
    with connected(server.url) as connection:
        status, _ = send(connection, "POST", "/v1/verify", body, Authorization=f"Bearer {server.operator}")
        assert status in (400, 422)
    device = SyntheticDevice(server, 1)
    answer = device.request("POST", "/v1/devices", body, key_id="new", Content_Type="application/json")
    assert answer.status_code in (400, 422), answer.text
    with connected(agent_url) as connection:
        status, _ = send(connection, "POST", "/v1/verify", body, Authorization=f"Bearer {TOKEN}")
        assert status in (400, 404, 422)


BLOCK = r"^```[^\n]*\n(.*?)^```"
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "integration.md"


def form(*parts: tuple[str, str, bytes], boundary: str = "xyz") -> bytes:
    """A form; a field's second part is the name of a file, empty for a plain field."""
    body = b""
    for name, file, value in parts:
        shown = f'; filename="{file}"' if file else ""
        body += (
            f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{shown}\r\n\r\n'.encode() + value + b"\r\n"
        )
    return body + f"--{boundary}--\r\n".encode()


ADA = ("user", "", b"ada")
PROBE = ("sample", "a.png", b"no picture")
FORMS = {
    "two files": form(ADA, PROBE, ("more", "b", b"x")),
    "a field twice": form(ADA, ADA, PROBE),
    "a sample that is no file": form(ADA, ("sample", "", b"text")),
    "a long field": form(("user", "", b"a" * 5000), PROBE),
    "many fields": form(*((f"f{number}", "", b"") for number in range(20))),
    "half": form(ADA, PROBE)[:-30],
    "no form": b"{}",
    "another boundary": form(ADA, PROBE, boundary="abc"),
}


@pytest.mark.parametrize("name", sorted(FORMS))
def test_what_is_no_form_is_malformed(server: RunningServer, agent_url: str, name: str) -> None:
    for kind_of_form in (
        "multipart/form-data; boundary=xyz",
        "multipart/form-data",
        "Multipart/Form-Data; charset=nope",
    ):
        for url, token in ((server.url, server.operator), (agent_url, TOKEN)):
            with connected(url) as connection:
                shown = {"Content_Type": kind_of_form, "Authorization": f"Bearer {token}"}
                status, document = send(connection, "POST", "/v1/verify", FORMS[name], **shown)
                assert status == 422 or document["type"] == "urn:uvsdk:problem:malformed", document
                shown = {"Content_Type": kind_of_form, "Authorization": "Bearer wrong"}
                assert send(connection, "POST", "/v1/verify", FORMS[name], **shown)[0] == 401


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_documented_curl_decides_alike_on_server_and_agent(
    server: RunningServer, agent_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of some MB, which no command line holds; nothing of it is written outside the process."""
    block = next(text for text in re.findall(BLOCK, DOCUMENT.read_text(), re.DOTALL | re.MULTILINE) if "curl" in text)
    (device,) = devices_of(server, 1)
    bundle = shipped()
    (tmp_path / "probe.wav").write_bytes(picture(0))
    assert (tmp_path / "probe.wav").stat().st_size > 1 << 20
    sample = (tmp_path / "probe.wav").read_bytes()
    assert device.leave_template(inference.embed(sample, bundle).embedding).status_code == 204
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    decisions = []
    for url, token, user in ((server.url, server.operator, device.user), (agent_url, TOKEN, "ada")):
        script = block.replace("https://clinic.example", url)
        environment = {**os.environ, "TOKEN": token, "HASHED_ID": user}
        done = subprocess.run(
            ["bash", "-ec", script], capture_output=True, text=True, timeout=60, cwd=tmp_path, env=environment
        )
        found = [json.loads(text) for text in re.findall(r"\{.*?\}(?=\{|$)", done.stdout)]
        decisions.append(found)
        assert len(found) == 2, done
        assert found[0] == found[1]
        assert found[0]["accepted"] is True, found[0]
    assert list(temporary.iterdir()) == []


def routes_of_server() -> list[APIRoute]:
    modules = [
        importlib.import_module(f"{routes.__name__}.{item.name}") for item in pkgutil.iter_modules(routes.__path__)
    ]
    return [route for module in modules for route in module.router.routes if isinstance(route, APIRoute)]


STRANGE = ("%00", "%ff%fe", "%ed%a0%80", "a" * 5000, "%2e%2e/%2e%2e", "9" * 5000, "-1", "%F0%9F%98%80", "a%0d%0ab:c")


def test_strange_addresses_and_headers_on_every_route(server: RunningServer, agent_url: str) -> None:
    routes = routes_of_server()
    assert len(routes) > 15
    with connected(server.url) as connection:
        for route in routes:
            for method in route.methods:
                for strange in STRANGE:
                    path = route.path
                    for part in route.param_convertors:
                        path = path.replace("{" + part + "}", strange)
                    for target in {path, f"{path}?limit={strange}&before={strange}&after={strange}&wait_s={strange}"}:
                        send(connection, method, target, b"{", Authorization=f"Bearer {server.operator}")
                for value in ("Bearer \xff", "Bearer", "Basic \x80", "bearer  x y", "Bearer " + "x" * 8000):
                    headers = {"Authorization": value, "UVSDK_Source": "\xe9", "If_None_Match": "\xff", "X": "\x80"}
                    send(connection, method, route.path.replace("{", "").replace("}", ""), b"", **headers)
                signed = {"Content_Digest": "sha-256=:\xe9:", "Signature": "\xff", "Signature_Input": 'a=("\xe9")'}
                send(connection, method, route.path.replace("{", "").replace("}", ""), b"\xff", **signed)
    with connected(agent_url) as connection:
        for strange in STRANGE:
            for method, path in (
                ("DELETE", f"/v1/users/{strange}"),
                ("POST", f"/v1/verify?{strange}"),
                ("GET", f"/{strange}"),
            ):
                send(connection, method, path, b"{", Authorization=f"Bearer {TOKEN}")
        for value in ("Bearer \xff", "Bearer", "Basic \x80"):
            assert send(connection, "POST", "/v1/verify", b"", Authorization=value)[0] == 401


def test_every_route_with_a_json_body_reads_it_strictly() -> None:
    with_body = [route for route in routes_of_server() if route.body_field]
    assert {"/v1/verify", "/v1/devices"} <= {route.path for route in with_body}
    assert [route.path for route in with_body if not isinstance(route, StrictRoute)] == []
