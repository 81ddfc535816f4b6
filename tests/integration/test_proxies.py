"""A real device and a real server with a real proxy between: under a prefix, and answering in the server's place."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.integration.harness import CONFIG, RunningServer, eventually, serving
from tests.integration.numpy_devices import federation_of, make_store, pages, token_of
from uvsdk import enroll
from uvsdk.bundle import shipped
from uvsdk.errors import ServerUnreachableError
from uvsdk_device import RoundReport
from uvsdk_device.connection import Connection
from uvsdk_device.queue import Backoff, QueueItem, UploadQueue

PEOPLE = 3
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
HTML = {"Content-Type": "text/html"}

Fault = tuple[int, dict[str, str], bytes]

# What proxies, firewalls and sign-in pages answer to an upload: too large, down, slow, forbidden, welcome.
FAULTS: tuple[Fault, ...] = (
    *((status, HTML, b"<html>") for status in (413, 502, 503, 504, 429, 403, 404, 409, 410, 401, 400, 200, 201)),
    (302, {"Location": "https://portal.example/login"}, b""),
    (307, {"Location": "/elsewhere"}, b""),
    (200, {}, b""),
    (204, {}, b""),
    (409, {"Content-Type": "application/problem+json"}, b'{"type": "about:blank", "status": 409}'),
)


class Proxy(ThreadingHTTPServer):
    """Forwards what is below ``prefix`` to ``upstream``; uploads meet ``faults`` first, one each."""

    def __init__(self, upstream: str, *, prefix: str, strips: bool, faults: list[Fault]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.upstream = urlsplit(upstream)
        self.prefix = prefix
        self.strips = strips
        self.faults = faults
        self.refused: list[bytes] = []
        self.lock = threading.Lock()

    def fault(self, body: bytes) -> Fault | None:
        with self.lock:
            # Of one device only, so that each of its tries meets the next.
            if not self.faults or (self.refused and self.refused[0] != body):
                return None
            self.refused.append(body)
            return self.faults.pop(0)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if not self.path.startswith(f"{self.server.prefix}/"):
            self.respond(404, HTML, b"<html>no such site")
            return
        if self.command == "PUT" and self.path.endswith("/update") and (fault := self.server.fault(body)):
            self.respond(*fault)
            return
        path = self.path.removeprefix(self.server.prefix) if self.server.strips else self.path
        upstream = http.client.HTTPConnection(str(self.server.upstream.hostname), self.server.upstream.port)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("connection",)}
        upstream.request(self.command, path, body, headers)
        answer = upstream.getresponse()
        self.respond(answer.status, dict(answer.getheaders()), answer.read())
        upstream.close()

    def respond(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "connection", "transfer-encoding", "date"):
                self.send_header(name, value)
        if status not in (204, 304):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_DELETE = forward


@contextmanager
def proxied(
    server: RunningServer, *, prefix: str = "", strips: bool = True, faults: tuple[Fault, ...] = ()
) -> Iterator[Proxy]:
    with Proxy(server.url, prefix=prefix, strips=strips, faults=list(faults)) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()


def train(server: RunningServer, url: str, folder: Path) -> dict[int, tuple[RoundReport, ...]]:
    """Every person enrols, takes part in one round and hands over the template, all at ``url``."""
    tokens = {person: token_of(server, f"person {person}") for person in range(PEOPLE)}
    reports: dict[int, tuple[RoundReport, ...]] = {}

    def take_part(person: int) -> None:
        store, federation = (
            make_store(folder, person),
            replace(federation_of(server, tokens[person], backoff=Backoff(0.01, 0.02)), url=url),
        )
        # Joined by participate(): who joins last may find the round open at once, and would train in it before.
        enroll(f"person {person}", pages(person), model=shipped(), store=store)
        federation = replace(federation, server_verification=True)
        reports[person] = federation.participate(f"person {person}", store, max_rounds=1)

    threads = [threading.Thread(target=take_part, args=(person,)) for person in range(PEOPLE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(reports) == list(range(PEOPLE))
    return reports


@contextmanager
def documented(name: str, upstream: str, folder: Path, *, body_limit: str = "") -> Iterator[str]:
    """The proxy that docs/operations.md configures, on loopback; skips where it is not installed."""
    program = shutil.which(name)
    if program is None:
        pytest.skip(f"{name} is not installed")
    port = free_port()
    (block,) = re.findall(rf"```{name}\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    block = block.replace("127.0.0.1:8080", upstream.removeprefix("http://"))
    if body_limit:
        block, found = re.subn(r"(client_max_body_size|max_size) [^\s;]+", rf"\1 {body_limit}", block)
        assert found == 1
    if name == "nginx":
        places = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi"))
        block = (
            f"daemon off; master_process off; error_log {folder}/log; pid {folder}/pid; events {{}}"
            f"http {{ access_log off; {places} scgi_temp_path {folder}/scgi;"
            f"server {{ listen 127.0.0.1:{port}; {block} }} }}"
        )
        command = [program, "-p", str(folder), "-e", f"{folder}/log", "-c", f"{folder}/conf"]
    else:
        block = "{\n\tadmin off\n}\n" + block.replace("clinic.example", f"http://127.0.0.1:{port}")
        command = [program, "run", "--adapter", "caddyfile", "--config", f"{folder}/conf"]
    (folder / "conf").write_text(block)
    environment = {**os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "XDG_DATA_HOME": str(folder)}
    with (folder / "out").open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
    try:
        eventually(lambda: listens(port) or process.poll() is not None, timeout_s=20)
        assert process.poll() is None, (folder / "out").read_text()
        yield f"http://127.0.0.1:{port}/uv"
    finally:
        process.terminate()
        process.wait(timeout=20)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("name", ["nginx", "caddy"])
def test_the_documented_proxies(tmp_path: Path, name: str) -> None:
    config = replace(CONFIG, rounds=1, deadline_s=30.0)
    with serving(tmp_path / "server", config=config, settings={"start_after_users": str(PEOPLE)}) as server:
        with documented(name, server.url, tmp_path) as url:
            reports = train(server, url, tmp_path)
            assert {tuple(report.state for report in found) for found in reports.values()} == {("uploaded",)}
        with documented(name, server.url, tmp_path, body_limit="1k") as url, Connection(url) as connection:
            if name == "nginx":  # Caddy notices only while it forwards
                with pytest.raises(ServerUnreachableError, match=r"answered 413 .*300000 bytes are too much"):
                    connection.put("/v1/rounds/1/update", bytes(300_000))
            server.stop()
            with pytest.raises(ServerUnreachableError, match="answered 502 in the server's place"):
                connection.get_json("/v1/deployment")
            server.start()


@pytest.mark.parametrize("strips", [True, False], ids=["the proxy strips the prefix", "the server does"])
def test_a_server_behind_a_prefix(tmp_path: Path, strips: bool) -> None:
    config = replace(CONFIG, rounds=1, deadline_s=30.0)
    settings = {"start_after_users": str(PEOPLE), "base_path": "" if strips else "/clinic/uv"}
    with (
        serving(tmp_path / "server", config=config, settings=settings) as server,
        proxied(server, prefix="/clinic/uv", strips=strips) as proxy,
    ):
        reports = train(server, f"http://127.0.0.1:{proxy.server_port}/clinic/uv/", tmp_path)
        assert {tuple(report.state for report in found) for found in reports.values()} == {("uploaded",)}
        eventually(lambda: server.rows("select state, accepted from rounds") == [("committed", PEOPLE)])
        assert server.rows("select count(*) from templates") == [(PEOPLE,)]
        # Without the prefix as well, which is how an operator looks at it on the machine itself.
        assert server.ask("GET", "/readyz").status_code == 200


def test_no_answer_in_the_servers_place_costs_an_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(CONFIG, rounds=1, deadline_s=60.0)
    reasons: list[str] = []
    postpone = UploadQueue._postpone

    def noted(self: UploadQueue, item: QueueItem, error: Exception) -> float:
        reasons.append(str(error))
        return postpone(self, item, error)

    monkeypatch.setattr(UploadQueue, "_postpone", noted)
    with (
        serving(tmp_path / "server", config=config, settings={"start_after_users": str(PEOPLE)}) as server,
        proxied(server, faults=FAULTS) as proxy,
    ):
        reports = train(server, f"http://127.0.0.1:{proxy.server_port}", tmp_path)
        assert proxy.faults == []
        assert len(set(proxy.refused)) == 1  # the same bytes each time
        assert len(reasons) == len(FAULTS)
        for (status, *_), reason in zip(FAULTS, reasons, strict=True):
            assert f"127.0.0.1 answered {status} in the server's place" in reason
        (first,) = (report for (report,) in reports.values() if report.state == "queued")
        assert "bytes are too much" in first.detail
        eventually(lambda: server.rows("select state, accepted from rounds") == [("committed", PEOPLE)])


def test_the_servers_own_413_is_final(tmp_path: Path) -> None:
    config = replace(CONFIG, rounds=1, deadline_s=5.0)
    settings = {"start_after_users": str(PEOPLE), "upload_limit_bytes": "1000"}
    with serving(tmp_path / "server", config=config, settings=settings) as server, proxied(server) as proxy:
        reports = train(server, f"http://127.0.0.1:{proxy.server_port}", tmp_path)
        for (report,) in reports.values():
            assert report.state == "refused"
            assert re.search("413 too-large", report.detail)
