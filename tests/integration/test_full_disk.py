"""A server whose disk is full: 507, nothing that was acknowledged is lost, and it goes on when space is back.

The data folder is a small file system in memory, for a limit on the size of files (``RLIMIT_FSIZE``) stops a write with
another error than a full disk does; :mod:`tests.unit.test_failures` has that one.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration import harness
from tests.integration.harness import CONFIG, KillableServer, SyntheticDevice, kind
from tests.integration.serve import fill
from uvsdk_server import observer

PEOPLE = 3
Start = Callable[..., KillableServer]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a server whose data folder is a disk of 8 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    server = KillableServer(tmp_path, config=replace(CONFIG, rounds=1))
    server.settings = {"start_after_users": str(PEOPLE)}
    server.data.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(server.data)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")

    def started(*, fill_at: str = "") -> KillableServer:
        server.start(fill_at=fill_at)
        return server

    try:
        yield started
        server.stop()
    finally:
        if server.process is not None:
            server.process.kill()
            server.process.wait()
        # A dying process may hold the mount for a moment.
        subprocess.run(["umount", "--lazy", str(server.data)], check=True)


def refused(answer: harness.httpx.Response) -> bool:
    return (answer.status_code, kind(answer)) == (507, "storage-full")


def blobs_in_use(server: KillableServer) -> set[str]:
    (named,) = server.rows("SELECT base_blob, algorithm_blob, optimiser_blob FROM deployment")
    of_models = server.rows("SELECT theta_blob FROM models UNION SELECT calibration_blob FROM models")
    # What the round started from is the best state so far, to which training may return.
    (best,) = server.rows("SELECT algorithm_blob, optimiser_blob FROM course") or [()]
    return {*named, *best, *(name for (name,) in of_models if name)}


def test_admissions_and_uploads_are_refused_and_nothing_acknowledged_is_lost(start: Start) -> None:
    server = start()
    token = server.token("enrol", uses=PEOPLE)
    devices = [SyntheticDevice(server, number) for number in range(PEOPLE)]
    for device in devices:
        assert device.register(token).status_code == 201
    assert devices[0].admit().status_code == 204
    ballast = fill(server.data)
    assert refused(devices[1].admit())
    assert server.ask("GET", "/healthz").status_code == 200
    assert server.ask("GET", "/v1/rounds").status_code == 200
    ballast.unlink()
    for device in devices[1:]:
        assert device.admit().status_code == 204

    header = devices[0].wait()
    assert header is not None
    bodies = [device.update(header) for device in devices]
    for device, body in zip(devices[:2], bodies, strict=False):
        assert device.upload(header, body).status_code == 201
    ballast = fill(server.data)
    answer = devices[2].upload(header, bodies[2])
    assert refused(answer)
    assert int(answer.headers["retry-after"]) >= 1
    assert devices[0].upload(header, bodies[0]).status_code in (200, 507)  # a retry needs room to be compared
    assert refused(server.ask("DELETE", f"/v1/users/{devices[2].user}"))
    # Even a power cut now loses nothing.
    assert server.process is not None
    server.process.kill()
    server.process.wait()
    ballast.unlink()
    assert server.restart_if_dead()
    again = SyntheticDevice(server, 2)
    assert again.upload(header, bodies[2]).status_code == 201
    harness.eventually(lambda: server.candidate()["round_id"] == 1)
    assert server.rows("select state, accepted from rounds") == [("committed", PEOPLE)]


def test_a_commit_waits_for_space(start: Start) -> None:
    server = start(fill_at=observer.AGGREGATION_STARTED)
    devices = harness.devices_of(server, PEOPLE)
    before = server.candidate()
    harness.play_round(devices, 0)
    harness.eventually(lambda: server.ask("GET", "/readyz").status_code == 503)
    assert server.candidate() == before
    assert [row["state"] for row in server.ask("GET", "/v1/rounds").json()["rounds"]] == ["aggregating"]
    (server.data / "ballast").unlink()
    harness.eventually(lambda: server.candidate()["round_id"] == 1)
    assert server.rows("select state, accepted from rounds") == [("committed", PEOPLE)]
    # Ready again once the task that commits has gone on, which is a moment after the commit shows.
    harness.eventually(lambda: server.ask("GET", "/readyz").status_code == 200)
    # No draft of a failed try is left.
    harness.eventually(lambda: {path.name for path in (server.data / "blobs").iterdir()} == blobs_in_use(server))
    assert "round stalled" in server.log()
