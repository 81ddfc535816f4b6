"""The HTTP client against a real server on loopback that misbehaves in every way we know."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from uvsdk.errors import ServerRefusedError, ServerUnreachableError, SettingsError, WireError
from uvsdk.privacy.request_signing import Requested, verify_request
from uvsdk_device import Federation
from uvsdk_device.connection import Connection, Signer, Timeouts

FAST = Timeouts(connect_s=2.0, silence_s=0.3, whole_s=0.8)

NO_ADDRESSES = (
    *("", "ftp://x", "https://", "//x", "127.0.0.1:8000", "https:x", "https://u:p@x", "https://@x"),
    *("https://x?q=1", "https://x?", "https://x#", "https://x#a"),
    *("https://x\n", "\thttps://x", " https://x", "https://x y", "https://x\x00", "https://\ud800", "https://x/\ud800"),
    *("https://x:99999", "https://x:0", "https://x:-1", "https://x:abc", "https://x:８０"),
    *("https://[::1", "https://::1]", "https://[::1%25eth0]", "https://[v1.x]"),
    *("https://☃.example", "https://a..b", "https://-x", f"https://{'a' * 64}.example", f"https://{'a.' * 127}long"),
    *("https://x/../y", "https://x/.", "https://x//y", "https://x/%2e", "https://x/a b", "https://x\\y", "https://x/ü"),
    "https://x/a;b",
)

WRONG = (
    *({"pepper": b"short"}, {"pepper": "text"}, {"approve": "ab"}, {"approve": "A" * 64}, {"person_id": "\ud800"}),
    *({"enrolment_token": "a\nb"}, {"enrolment_token": "é"}, {"patience_s": -1.0}, {"patience_s": float("nan")}),
)


class Handler(BaseHTTPRequestHandler):
    """One path per behaviour."""

    protocol_version = "HTTP/1.1"
    seen: list[tuple[str, str, dict[str, str], bytes]]

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def answer(self, status: int, body: bytes = b"", *, marked: bool = True, **headers: str) -> None:
        self.send_response(status)
        if marked and "UVSDK_Challenge" not in headers:
            self.send_header("UVSDK-Challenge", "c0ffee")
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if status != 304:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.seen.append((self.command, self.path, dict(self.headers), body))
        path = self.path.split("?")[0].removeprefix("/prefix").removeprefix("/v1")
        name = path.strip("/").replace("-", "_")
        getattr(self, f"case_{name}", self.in_its_place)()

    do_GET = do_PUT = do_POST = do_DELETE = handle_any

    def case_healthz(self) -> None:
        self.answer(200, UVSDK_Challenge="c0ffee")

    def case_stale_once(self) -> None:
        if '"c0ffee.' in self.headers["Signature-Input"]:
            body = b'{"type": "urn:uvsdk:problem:stale-challenge"}'
            self.answer(401, body, Content_Type="application/problem+json", UVSDK_Challenge="decade")
        else:
            self.answer(200, b"fresh", UVSDK_Challenge="decade")

    def case_stale_always(self) -> None:
        body = b'{"type": "urn:uvsdk:problem:stale-challenge"}'
        challenge = hashlib.sha256(self.headers["Signature-Input"].encode()).hexdigest()
        self.answer(401, body, Content_Type="application/problem+json", UVSDK_Challenge=challenge)

    def case_echo(self) -> None:
        self.answer(200, json.dumps({"path": self.path}).encode(), ETag='"v1"')

    def case_etag(self) -> None:
        same = self.headers.get("If-None-Match") == '"v1"'
        self.answer(304 if same else 200, b"" if same else b"model", ETag='"v1"')

    def case_empty(self) -> None:
        self.answer(204, UVSDK_Training="finished")

    def case_problem(self) -> None:
        body = {
            "type": "urn:uvsdk:problem:wrong-round",
            "title": "Conflict",
            "status": 409,
            "detail": "it is over",
        }
        self.answer(409, json.dumps(body).encode(), Content_Type="application/problem+json")

    def case_plain_error(self) -> None:
        self.answer(403, b"<html>forbidden</html>", Content_Type="text/html")

    def in_its_place(self) -> None:
        """A proxy's, a firewall's or a sign-in page's answer: the status and kind of which are in the query."""
        query = parse_qs(urlsplit(self.path).query)
        headers = {"Content_Type": query["type"][0]} if "type" in query else {}
        body = b"<html>" if headers else b""
        self.answer(int(query["status"][0]), body, marked=False, **headers)

    def case_broken_problem(self) -> None:
        self.answer(400, b"{", Content_Type="application/problem+json")

    def case_busy(self) -> None:
        self.answer(503, b"later")

    def case_failed(self) -> None:
        self.answer(500, b"a bug")

    def case_full(self) -> None:
        self.answer(507, b"{}", Content_Type="application/problem+json")

    def case_never(self) -> None:
        self.answer(501, b"{}", Content_Type="application/problem+json")

    def case_many(self) -> None:
        self.answer(429, b"slowly", Retry_After="1")

    def case_garbage(self) -> None:
        self.answer(200, b"\xff\x00 not json")

    def case_list(self) -> None:
        self.answer(200, b"[1]")

    def case_deep(self) -> None:
        self.answer(200, b"[" * 100_000)

    def case_long(self) -> None:
        self.answer(200, bytes(5000))

    def case_short(self) -> None:
        self.send_response(200)
        self.send_header("UVSDK-Challenge", "c0ffee")
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b"only this")
        self.close_connection = True

    def case_silent(self) -> None:
        time.sleep(1.0)
        self.close_connection = True

    def case_drip(self) -> None:
        self.send_response(200)
        self.send_header("UVSDK-Challenge", "c0ffee")
        self.send_header("Content-Length", "1000")
        self.end_headers()
        try:
            for _ in range(30):
                self.wfile.write(b".")
                self.wfile.flush()
                time.sleep(0.1)
        except OSError:
            pass
        self.close_connection = True

    def case_redirect(self) -> None:
        self.answer(307, marked=False, Location="http://127.0.0.1:1/stolen?token=secret")

    def case_bad_redirect(self) -> None:
        self.answer(302, marked=False, Location="http://[")

    def case_not_http(self) -> None:
        self.wfile.write(b"SSH-2.0-OpenSSH\r\n")
        self.close_connection = True


class Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """A client that does not read on is what is tested."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    Handler.seen = []
    with Server(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{http.server_address[1]}"
        http.shutdown()
        thread.join()


@pytest.fixture
def connection(server: str) -> Iterator[Connection]:
    with Connection(server) as opened:
        yield opened


@pytest.fixture
def impatient(server: str) -> Iterator[Connection]:
    with Connection(server, timeouts=FAST) as opened:
        yield opened


def test_what_is_signed_is_what_arrives(server: str) -> None:
    key = Ed25519PrivateKey.generate()
    with Connection(server, signer=Signer(key, "device-1"), clock=lambda: 1000.0) as connection:
        connection.get("/echo", query={"after": 3, "wait_s": 0.5, "text": "a b/ü"}, limit=1000)
        connection.put("/echo", b"sealed bytes")
        connection.put("/echo", b"queued bytes", sha256=hashlib.sha256(b"queued bytes").digest())
        connection.post_json("/echo", {"user": "x"})
        connection.delete("/echo")
    assert [method for method, *_ in Handler.seen[-5:]] == ["GET", "PUT", "PUT", "POST", "DELETE"]
    for method, path, headers, body in Handler.seen[-5:]:
        digest = hashlib.sha256(body).digest()
        requested = Requested(method, server.removeprefix("http://"), path, digest)
        verify_request(headers, requested, public_key=key.public_key())
        assert ';created=1000;keyid="device-1";nonce="c0ffee.' in headers["Signature-Input"]


def test_a_request_over_a_stale_challenge_is_signed_anew_once(server: str) -> None:
    with Connection(server, signer=Signer(Ed25519PrivateKey.generate(), "device-1")) as connection:
        assert connection.put("/stale-once", b"body").body == b"fresh"
        assert [body for _, path, _, body in Handler.seen[-2:]] == [b"body", b"body"]
        first, second = (headers["Signature-Input"] for _, _, headers, _ in Handler.seen[-2:])
        assert '"c0ffee.' in first
        assert '"decade.' in second
        before = len(Handler.seen)
        with pytest.raises(ServerRefusedError, match="stale"):
            connection.get("/stale-always", limit=100)
        assert len(Handler.seen) == before + 2


def test_after_a_failure_the_challenge_is_asked_for_anew(server: str) -> None:
    """A server that was started again refuses a large body before it is whole, which looks like a broken line."""
    with Connection(server, signer=Signer(Ed25519PrivateKey.generate(), "device-1")) as connection:
        connection.get("/echo", limit=1000)
        with pytest.raises(ServerUnreachableError):
            connection.get("/short", limit=10_000)
        connection.get("/echo", limit=1000)
    assert [path for _, path, _, _ in Handler.seen[-5:]] == ["/healthz", "/echo", "/short", "/healthz", "/echo"]


def test_an_entity_tag_saves_the_download(connection: Connection) -> None:
    first = connection.get("/etag", limit=100)
    assert (first.status, first.body, first.headers["etag"]) == (200, b"model", '"v1"')
    again = connection.get("/etag", limit=100, etag=first.headers["etag"])
    assert (again.status, again.body) == (304, b"")


def test_an_answer_without_a_body_is_an_empty_object(connection: Connection) -> None:
    answer, values = connection.get_json("/empty")
    assert (answer.status, values, answer.headers["uvsdk-training"]) == (204, {}, "finished")


def test_a_problem_document_becomes_the_refusal_it_states(connection: Connection) -> None:
    with pytest.raises(ServerRefusedError) as caught:
        connection.put("/problem", b"")
    assert (caught.value.status, caught.value.kind, caught.value.detail) == (409, "wrong-round", "it is over")
    with pytest.raises(ServerRefusedError, match="501"):  # no repetition changes that
        connection.get("/never", limit=100)


@pytest.mark.parametrize(
    "path", ["/busy", "/failed", "/full", "/many", "/short", "/silent", "/drip", "/not-http", "/plain-error"]
)
def test_no_usable_answer_is_unreachable(impatient: Connection, path: str) -> None:
    start = time.monotonic()
    with pytest.raises(ServerUnreachableError):
        impatient.get(path, limit=10_000)
    assert time.monotonic() - start < 3.0


@pytest.mark.parametrize("path", ["/garbage", "/list", "/deep", "/broken-problem"])
def test_garbage_is_a_wire_error(connection: Connection, path: str) -> None:
    with pytest.raises(WireError, match="JSON"):
        connection.get_json(path)


def test_an_answer_over_the_limit_is_not_read_on(connection: Connection) -> None:
    assert len(connection.get("/long", limit=5000).body) == 5000
    with pytest.raises(WireError, match="longer than the 4999 bytes"):
        connection.get("/long", limit=4999)


def test_redirects_are_not_followed(connection: Connection) -> None:
    """A sign-in page, or a server that has moved: nobody knows which, so what is queued stays queued."""
    with pytest.raises(ServerUnreachableError, match=r"redirect to 127\.0\.0\.1, which is not followed") as caught:
        connection.put("/redirect", b"sealed")
    assert "secret" not in str(caught.value)
    with pytest.raises(ServerUnreachableError, match="redirect, which is not followed"):
        connection.put("/bad-redirect", b"sealed")
    assert [path for _, path, *_ in Handler.seen[-2:]] == ["/redirect", "/bad-redirect"]


@pytest.mark.parametrize(
    "status", [200, 201, 204, 400, 401, 403, 404, 407, 409, 410, 413, 415, 422, 429, 431, 502, 504]
)
@pytest.mark.parametrize("kind", ["", "text/html", "application/json", "application/problem+json"])
def test_whatever_answers_in_the_servers_place_acknowledges_and_refuses_nothing(
    connection: Connection, status: int, kind: str
) -> None:
    query = f"?status={status}" + (f"&type={kind.replace('+', '%2B')}" if kind and status != 204 else "")
    for call in (
        lambda: connection.put("/portal" + query, b"sealed"),
        lambda: connection.get_json("/portal" + query),
        lambda: connection.delete("/portal" + query),
    ):
        with pytest.raises(ServerUnreachableError, match=f"answered {status} in the server's place.*stays queued"):
            call()


def test_a_body_that_is_too_large_for_a_proxy_is_told_apart_from_the_servers_own_limit(connection: Connection) -> None:
    with pytest.raises(ServerUnreachableError, match=r"6 bytes are too much.*docs/operations\.md"):
        connection.put("/portal?status=413&type=text/html", b"sealed")


def test_nobody_listening_is_unreachable() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with (
            Connection(f"http://127.0.0.1:{taken.getsockname()[1]}") as connection,
            pytest.raises(ServerUnreachableError, match="stays queued"),
        ):
            connection.get("/echo", limit=10)


@pytest.mark.parametrize(
    ("url", "canonical"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://[::1]:8000/", "http://[::1]:8000"),
        ("http://localhost", "http://localhost"),
        ("https://x.example/a/", "https://x.example/a"),
        ("HTTPS://X.example:8443/A/b.c/", "https://x.example:8443/A/b.c"),
        ("https://bücher.example", "https://xn--bcher-kva.example"),
        ("https://x.example:", "https://x.example"),
    ],
)
def test_addresses_that_are_accepted(url: str, canonical: str) -> None:
    with Connection(url) as connection:
        assert connection.url == canonical


def test_plain_http_beyond_this_machine_must_be_allowed_by_name() -> None:
    with pytest.raises(SettingsError, match="allow-plain-http"):
        Connection("http://server.example")
    Connection("http://server.example", allow_plain_http=True).close()


@pytest.mark.parametrize("url", NO_ADDRESSES)
def test_addresses_that_are_refused_before_anything_is_stored(url: str) -> None:
    with pytest.raises(SettingsError, match=r"https://|token"):
        Connection(url)
    with pytest.raises(SettingsError) as caught:
        Federation(url, pepper=bytes(16))
    assert "u:p" not in str(caught.value)


@pytest.mark.parametrize("wrong", WRONG)
def test_arguments_that_no_server_makes_right_are_refused_before_anything_is_stored(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        Federation("https://server.example", **{"pepper": bytes(16), **wrong})


def test_what_is_signed_is_the_path_below_the_prefix(server: str) -> None:
    key = Ed25519PrivateKey.generate()
    with Connection(f"{server}/prefix", signer=Signer(key, "device-1"), clock=lambda: 1000.0) as connection:
        connection.get("/v1/echo", query={"after": 3}, limit=1000)
    ((_, path, headers, body),) = Handler.seen[-1:]
    assert path == "/prefix/v1/echo?after=3"
    digest = hashlib.sha256(body).digest()
    requested = Requested("GET", server.removeprefix("http://"), "/v1/echo?after=3", digest)
    verify_request(headers, requested, public_key=key.public_key())
