"""Bodies, addresses and headers that nobody means, sent over one connection to every route of server and agent."""

from __future__ import annotations

import http.client
import importlib
import json
import pkgutil
import threading
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

import pytest
from fastapi.routing import APIRoute

from tests.integration.harness import RunningServer, SyntheticDevice, eventually, kind, serving
from tests.integration.numpy_devices import make_store, pages
from uvsdk import enroll
from uvsdk.bundle import shipped
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


@pytest.fixture(scope="module")
def agent_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    import uvicorn

    folder = tmp_path_factory.mktemp("agent")
    store = make_store(folder, 0)
    enroll("ada", pages(0), model=shipped(), store=store)

    def forget(user: str) -> None:
        raise UnknownUserError("nobody of that name is enrolled on this device")

    app = agent.create_app(Runtime(store, shipped()), token=TOKEN, forget=forget)  # type: ignore[arg-type]
    running = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=running.run)
    thread.start()
    eventually(lambda: running.started)
    yield "http://{}:{}".format(*running.servers[0].sockets[0].getsockname()[:2])
    running.should_exit = True
    thread.join()


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
