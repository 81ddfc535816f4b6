"""Which proxy and which certificates the environment asks for, and that a bad word in it is a clear refusal."""

from __future__ import annotations

import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import uvsdk
from tests.builders import open_store
from uvsdk.bundle import shipped
from uvsdk.errors import ServerUnreachableError, WeightsNotFoundError
from uvsdk.system import network
from uvsdk.training import weights
from uvsdk.training.catalogue import CATALOGUE
from uvsdk_device import Federation
from uvsdk_device.connection import Connection

PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "REQUEST_METHOD")
TLS_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE")
SERVER = "https://server.invalid"


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*PROXY_VARIABLES, *TLS_VARIABLES):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.mark.parametrize(
    ("variables", "url", "expected"),
    [
        ({}, "https://x.example", None),
        ({"HTTPS_PROXY": "http://p:1"}, "https://x.example", "http://p:1"),
        ({"https_proxy": "http://p:1"}, "https://x.example", "http://p:1"),
        ({"HTTPS_PROXY": "http://p:1"}, "http://x.example", None),
        ({"HTTP_PROXY": "p:1\n"}, "http://x.example", "http://p:1"),
        ({"ALL_PROXY": "socks5://p:1"}, "https://x.example", "socks5://p:1"),
        ({"ALL_PROXY": "http://p:1", "HTTPS_PROXY": "http://q:1"}, "https://x.example", "http://q:1"),
        ({"ALL_PROXY": "http://p:1"}, "https://127.0.0.1", None),
        ({"ALL_PROXY": "http://p:1"}, "http://[::1]:8000", None),
        ({"ALL_PROXY": "http://p:1"}, "http://localhost:8000", None),
        ({"ALL_PROXY": " "}, "https://x.example", None),
    ],
)
def test_the_proxy_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], url: str, expected: str | None
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert network.proxy_of(url) == expected


@pytest.mark.parametrize(
    ("exempt", "url", "direct"),
    [
        ("*", "https://x.example", True),
        ("example", "https://x.example", True),
        (".example", "https://x.example", True),
        ("other.example, x.example", "https://x.example", True),
        ("x.example:8443", "https://x.example:8443", True),
        ("xx.example,ample", "https://x.example", False),
        ("10.0.0.0/8", "https://10.1.2.3", True),
        ("10.0.0.0/8", "https://11.1.2.3", False),
        ("10.0.0.1/8", "https://10.1.2.3", True),
        ("fd00::/8", "https://[fd12::1]", True),
        ("fd00::/8,[::1]", "https://[fe80::1]", False),
        ("[fd12::1]", "https://[fd12::1]:8443", True),
        ("[fd12::1]:8443", "https://[fd12::1]:8443", True),
        ("fd12::1", "https://[fd12:0::1]", True),
        ("[::1", "https://x.example", False),
        ("[::1],localhost,127.0.0.1/8,::1/128,,//,[", "https://x.example", False),
    ],
)
def test_hosts_that_need_no_proxy(monkeypatch: pytest.MonkeyPatch, exempt: str, url: str, direct: bool) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", exempt)
    assert network.proxy_of(url) == (None if direct else "http://proxy.example:3128")
    Connection(url).close()


UNUSABLE = (
    ({"ALL_PROXY": "socks4://proxy.example:1"}, "proxy"),
    ({"HTTPS_PROXY": "ftp://proxy.example"}, "proxy"),
    ({"HTTPS_PROXY": "http://user:secret@proxy.example:99999"}, "proxy"),
    ({"HTTPS_PROXY": "http://[::1"}, "proxy"),
    ({"HTTPS_PROXY": "http://proxy.example:port"}, "proxy"),
    ({"HTTPS_PROXY": "http://a\nb"}, "proxy"),
    ({"HTTPS_PROXY": "://"}, "proxy"),
    ({"HTTPS_PROXY": "http://"}, "proxy"),
    ({"HTTPS_PROXY": "http://a..b:1"}, "."),
    ({"SSL_CERT_FILE": "{folder}/absent.pem"}, "SSL_CERT_FILE"),
    ({"SSL_CERT_FILE": "{folder}"}, "SSL_CERT_FILE"),
    ({"SSL_CERT_FILE": "{folder}/garbage.pem"}, "SSL_CERT_FILE"),
    ({"SSLKEYLOGFILE": "{folder}/absent/keys"}, "SSLKEYLOGFILE"),
)


@pytest.mark.parametrize(("variables", "told"), UNUSABLE)
def test_an_environment_that_nobody_can_use_queues_the_enrolment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variables: dict[str, str], told: str
) -> None:
    (tmp_path / "garbage.pem").write_text("this is no certificate")
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(folder=tmp_path))
    _is_queued(tmp_path, told)
    with pytest.raises(WeightsNotFoundError, match=told):
        _download()


def test_socks_without_its_package_queues_the_enrolment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://user:secret@127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "socksio", None)
    _is_queued(tmp_path, r"pip install 'httpx\[socks\]'")


def test_a_missing_certificate_file_is_no_matter_over_plain_http(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "absent.pem"))
    with Connection("http://127.0.0.1:9") as connection, pytest.raises(ServerUnreachableError, match="refused"):
        connection.get("/v1/deployment", limit=1)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n", "407"),
        (b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n", "502"),
        (b"SSH-2.0-OpenSSH\r\n", ""),
        (b"HTTP/1.1 200 OK\r\n\r\nthis is not TLS", ""),
        (b"", ""),
    ],
)
def test_a_proxy_that_refuses_or_talks_nonsense_queues_the_enrolment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, one_answer: Callable[[bytes], int], answer: bytes, told: str
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{one_answer(answer)}")
    _is_queued(tmp_path, told)


def test_an_environment_is_no_matter_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "ftp://nobody")
    monkeypatch.setenv("NO_PROXY", "[[[")
    with Connection("http://127.0.0.1:9") as connection, pytest.raises(ServerUnreachableError, match="refused"):
        connection.get("/v1/deployment", limit=1)


@pytest.fixture
def one_answer() -> Iterator[Callable[[bytes], int]]:
    """Starts a listener that answers whatever it is asked with these bytes and closes; gives its port."""
    listeners: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def start(answer: bytes) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def serve() -> None:
            while True:
                try:
                    taken, _ = listener.accept()
                except OSError:
                    return
                with taken:
                    taken.recv(65536)
                    taken.sendall(answer)

        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        port: int = listener.getsockname()[1]
        return port

    yield start
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
    for thread in threads:
        thread.join()


def _is_queued(folder: Path, told: str) -> None:
    """Enrolment with a federation succeeds, is stored, and says why nothing was sent."""
    store = open_store(folder / "store")
    rng = np.random.default_rng(0)
    sign = rng.uniform(4, 16, (6, 6))
    pages = [np.pad(sign + rng.uniform(0, 0.5, (6, 6)), 1) for _ in range(3)]
    result = uvsdk.enroll(
        "ada", pages, model=shipped(), store=store, federation=Federation(SERVER, pepper=bytes(16), patience_s=0.0)
    )
    assert result.participation is not None
    assert result.participation.state == "queued"
    assert re.search(told, result.participation.detail), result.participation.detail
    assert "secret" not in result.participation.detail
    assert "the log" not in result.participation.detail
    assert store.users() == ("ada",)
    with pytest.raises(ServerUnreachableError):
        Federation(SERVER, pepper=bytes(16), patience_s=0.0).refresh_template("ada", store)


def _download() -> None:
    wanted = next(entry for entry in CATALOGUE.values() if entry.url)
    weights._download(replace(wanted, url=f"{SERVER}/file"), Path("/nonexistent"))
