"""What a server says of its releases, over real HTTP and signed, with every answer in the test's hand."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from uvsdk.bundle import Bundle
from uvsdk.federation.messages import TrainingConfig
from uvsdk.privacy.request_signing import CHALLENGE_HEADER
from uvsdk.records.codec import pack
from uvsdk.release.record import Release, sign_release
from uvsdk_device import EncryptedStore
from uvsdk_device.connection import Connection
from uvsdk_device.deployment import Deployment
from uvsdk_device.models import Models
from uvsdk_device.releases import Follower

NAME = "releases"


@dataclass
class ReleaseServer:
    """Shows one release at a time; counts what it is asked."""

    key: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    url: str = ""
    current: bytes = b""
    signature: bytes = b""
    bundles: dict[int, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    refusals: list[int] = field(default_factory=list)
    connections: list[Connection] = field(default_factory=list)

    def show(
        self, number: int, bundle: Bundle, *, by: Ed25519PrivateKey | None = None, served: bytes | None = None
    ) -> Release:
        """From now on ``number`` is the release in force."""
        calibration = "" if bundle.calibration is None else bundle.calibration.digest
        release = Release(
            NAME, number, bundle.version, bundle.digest, calibration, 0, 0, "fedaws", "c" * 64, "operator", (), 1.0
        )
        self.current, self.signature = pack(release), sign_release(release, by or self.key)
        self.bundles[number] = bundle.sign(self.key, issuer=NAME).to_bytes() if served is None else served
        return release

    def follower(self, store: EncryptedStore) -> Follower:
        """A device of this deployment."""
        deployment = Deployment(
            name=NAME,
            config=TrainingConfig(NAME, "handwriting", "digits-cnn", "fedaws"),
            server_key_id="k" * 32,
            server_public_key=X25519PrivateKey.generate().public_key(),
            server_signing_key=self.key.public_key(),
            model_version="m" * 64,
            modality="handwriting",
            needs=("mean",),
            edge_only=False,
        )
        connection = Connection(self.url)
        self.connections.append(connection)
        return Follower(store, deployment, connection, Models(store, connection, self.key.public_key()), fmr=None)

    def answer(self, method: str, path: str) -> tuple[int, str, bytes]:
        self.asked.append(f"{method} {path}")
        parts = path.strip("/").split("/")
        if parts == ["v1", "releases", "current"]:
            values = {
                "record": base64.b64encode(self.current).decode(),
                "signature": base64.b64encode(self.signature).decode(),
            }
            return 200, "application/json", json.dumps(values).encode()
        if parts[:2] == ["v1", "releases"] and parts[-1] == "bundle" and int(parts[2]) in self.bundles:
            return 200, "application/octet-stream", self.bundles[int(parts[2])]
        if method == "POST" and parts[-1] == "refusal":
            self.refusals.append(int(parts[2]))
            return 204, "application/json", b""
        problem = {"type": "urn:uvsdk:problem:not-found", "title": "no such thing", "status": 404}
        return 404, "application/problem+json", json.dumps(problem).encode()


@contextmanager
def release_server() -> Iterator[ReleaseServer]:
    """A server on loopback."""
    state = ReleaseServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer("GET")

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", "0")))
            self._answer("POST")

        def _answer(self, method: str) -> None:
            status, kind, body = state.answer(method, self.path)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header(CHALLENGE_HEADER, "c")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield state
    finally:
        for connection in state.connections:
            connection.close()
        server.shutdown()
        server.server_close()
        thread.join()
